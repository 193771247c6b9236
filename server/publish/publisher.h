#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <kj/async.h>

#include "server/checkpoint/checkpoint_schedule.h"
#include "server/checkpoint/checkpointer.h"
#include "server/publish/publish_config.h"
#include "server/publish/publish_outcomes.h"
#include "server/publish/round_queue.h"
#include "server/publish/version_store.h"
#include "server/publish/weights_copy.h"

namespace psd {

/// Publishes versions of a model in training, on its own thread: copies the weights of all shards at one
/// moment, converts them to the published dtype and hands them to a VersionStore. Failures are logged and
/// retried; the newest version stays. Where several daemons serve the model, each publishes its part, and the
/// moments are rounds that have the same number at all of them. Thread-safe.
class Publisher {
 public:
  /// `path`: the folder of the versions, for the status; empty: they are in memory. `rounds`: the moments of
  /// a part of a model; null: the model is whole.
  Publisher(std::shared_ptr<VersionStore> versions, PublishConfig config, std::string path,
            Partition partition = {}, std::shared_ptr<RoundQueue> rounds = nullptr);
  /// As stop(); publish() calls that wait fail with ErrorCode::shuttingDown.
  ~Publisher();

  /// The model to publish from now on, once it is initialized; no-op if it is that one already.
  void begin(CheckpointSource source);
  /// There is no model any more.
  void forget();
  /// Publishes a version that starts after the call. Resolves with it once it is durable.
  /// ErrorCode::notReady before begin().
  kj::Promise<Result<VersionInfo>> publish() { return publishAfter().published; }
  /// A version that is being made. `copied` resolves once the weights are copied, or cannot be, from when on
  /// updates are not in it.
  struct Making {
    kj::Promise<void> copied;
    kj::Promise<Result<VersionInfo>> published;
  };
  Making publishAfter();
  /// No version is made from when the promise resolves until release(); requests wait. The moments of rounds
  /// that wait are published before.
  kj::Promise<void> hold();
  void release();
  /// Applies the live keys of a configuration.
  void follow(const PublishConfig& config);
  /// Publishes a last version if versions are made by time or updates and the model has changed since, or the
  /// moments of rounds that wait for it, and ends the thread. Returns the error of the last version. Blocks;
  /// no update may follow. Idempotent.
  Status finish();
  /// Ends the thread without a last version. Blocks. Idempotent.
  void stop() { end(false); }

  VersionStore& versions() { return *versions_; }
  PublishStatus status() const;
  /// How often the thread has looked for something to do.
  uint64_t passes() const { return passes_; }

 private:
  struct Request {
    kj::Own<kj::CrossThreadPromiseFulfiller<void>> copied;
    kj::Own<kj::CrossThreadPromiseFulfiller<Result<VersionInfo>>> published;
    bool isCopied = false;

    void noteCopied() {
      if (!std::exchange(isCopied, true)) copied->fulfill();
    }
    void answer(const Result<VersionInfo>& outcome) {
      noteCopied();
      published->fulfill(Result<VersionInfo>(outcome));
    }
  };
  using Requests = std::vector<Request>;

  void run();
  bool due() const;
  /// Whether there is something to do. The mutex is held.
  bool mayWork() const { return !isHeld_ && (!requests_.empty() || (rounds_ && !rounds_->empty())); }
  void answerHolds();
  /// The part of the thread's loop for moments of rounds.
  void runRounds();
  /// Copies a group at the end of a round; the version follows once all groups have ended it.
  Status gather(RoundQueue::Held held);
  Result<VersionInfo> makeOfRound();
  /// copy_, of this store. It is of the thread.
  Status makeCopyOf(const CheckpointSource& source, const PublishConfig& config);
  /// Publishes one version and records the outcome.
  Result<VersionInfo> attempt(bool isDue, Requests& served);
  Result<VersionInfo> make(Requests& served);
  CheckpointSchedule::Terms scheduleTerms() const;
  bool scheduled() const { return config_.everySeconds > 0 || config_.everyUpdates > 0; }
  void end(bool publishLast);
  static uint64_t updatesOf(const ParameterStore& store);

  const std::shared_ptr<VersionStore> versions_;
  const std::string path_;
  const Partition partition_;
  const std::shared_ptr<RoundQueue> rounds_;  // null: the model is whole
  // Used only by the thread:
  std::unique_ptr<WeightsCopy> copy_;
  /// The moment whose groups are being copied.
  struct Gathering {
    RoundMoment moment;
    WeightsCopy::Taken taken;
    std::set<uint32_t> missing;  // groups
  };
  std::optional<Gathering> gathering_;
  std::atomic<uint64_t> passes_{0};

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable wake_, ended_;
  PublishConfig config_;
  std::optional<CheckpointSource> source_;
  CheckpointSchedule schedule_;
  Requests requests_;
  bool isHeld_ = false;
  std::vector<kj::Own<kj::CrossThreadPromiseFulfiller<void>>> holds_;  // calls of hold()
  bool ending_ = false, publishLast_ = false, hasEnded_ = false;
  Status lastOutcome_;  // of the last version that finish() publishes
  PublishOutcomes outcomes_;
  double pauseMaxSeconds_ = 0;

  std::thread thread_;  // last: it uses all members above
};

}  // namespace psd
