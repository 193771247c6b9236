#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <kj/async.h>

#include "server/checkpoint/checkpoint_schedule.h"
#include "server/checkpoint/checkpointer.h"
#include "server/publish/publish_config.h"
#include "server/publish/publish_outcomes.h"
#include "server/publish/version_store.h"
#include "server/publish/weights_copy.h"

namespace psd {

/// Publishes versions of a model in training, on its own thread: copies the weights of all shards at one
/// moment, converts them to the published dtype and hands them to a VersionStore. Failures are logged and
/// retried; the newest version stays. Thread-safe.
class Publisher {
 public:
  /// `path`: the folder of the versions, for the status; empty: they are in memory.
  Publisher(std::shared_ptr<VersionStore> versions, PublishConfig config, std::string path);
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
  /// Applies the live keys of a configuration, and the terms of the store.
  void follow(const PublishConfig& config, VersionLedger::Terms terms);
  /// Publishes a last version if versions are made by time or updates and the model has changed since, and
  /// ends the thread. Returns the error of that version. Blocks; no update may follow. Idempotent.
  Status finish();
  /// Ends the thread without a last version. Blocks. Idempotent.
  void stop() { end(false); }

  VersionStore& versions() { return *versions_; }
  PublishStatus status() const;

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
  /// Publishes one version and records the outcome.
  Result<VersionInfo> attempt(bool isDue, Requests& served);
  Result<VersionInfo> make(Requests& served);
  CheckpointSchedule::Terms scheduleTerms() const;
  bool scheduled() const { return config_.everySeconds > 0 || config_.everyUpdates > 0; }
  void end(bool publishLast);
  static uint64_t updatesOf(const ParameterStore& store);

  const std::shared_ptr<VersionStore> versions_;
  const std::string path_;
  std::unique_ptr<WeightsCopy> copy_;  // used only by the thread

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable wake_, ended_;
  PublishConfig config_;
  std::optional<CheckpointSource> source_;
  CheckpointSchedule schedule_;
  Requests requests_;
  bool ending_ = false, publishLast_ = false, hasEnded_ = false;
  Status lastOutcome_;  // of the last version that finish() publishes
  PublishOutcomes outcomes_;
  double pauseMaxSeconds_ = 0;

  std::thread thread_;  // last: it uses all members above
};

}  // namespace psd
