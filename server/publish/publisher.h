#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <kj/async.h>

#include "server/checkpoint/checkpoint_schedule.h"
#include "server/checkpoint/checkpointer.h"
#include "server/publish/publish_config.h"
#include "server/publish/version_store.h"
#include "server/publish/weights_copy.h"

namespace psd {

/// Publishes versions of a model in training, on its own thread: copies the weights of all shards at one
/// moment, converts them to the published dtype and hands them to a VersionStore. Failures are logged and
/// retried; earlier versions stay. Thread-safe.
class Publisher {
 public:
  /// `path`: the folder of the versions, for the status; empty: they are in memory.
  Publisher(std::shared_ptr<VersionStore> versions, PublishConfig config, std::string path);
  /// Stops the thread without a last version; publish() calls that wait fail with ErrorCode::shuttingDown.
  ~Publisher();

  /// The model to publish, once it is initialized.
  void begin(CheckpointSource source);
  /// Publishes a version that starts after the call. Resolves with it once it is durable.
  /// ErrorCode::notReady before begin().
  kj::Promise<Result<VersionInfo>> publish();
  /// Applies the live keys of a configuration, and the terms of the store.
  void follow(const PublishConfig& config, VersionLedger::Terms terms);
  /// Publishes a last version if some are due by time or updates and the model has changed, and ends the
  /// thread. Blocks; no update may follow. Idempotent.
  void finish();

  VersionStore& versions() { return *versions_; }
  PublishStatus status() const;

 private:
  using Requests = std::vector<kj::Own<kj::CrossThreadPromiseFulfiller<Result<VersionInfo>>>>;

  void run();
  /// Publishes one version and records the outcome.
  Result<VersionInfo> attempt();
  Result<VersionInfo> make();
  CheckpointSchedule::Terms scheduleTerms() const;
  bool scheduled() const { return config_.everySeconds > 0 || config_.everyUpdates > 0; }
  void end(bool publishLast);
  static uint64_t updatesOf(const ParameterStore& store);

  const std::shared_ptr<VersionStore> versions_;
  const std::string path_;
  std::unique_ptr<WeightsCopy> copy_;  // used only by the thread

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable wake_;
  PublishConfig config_;
  std::optional<CheckpointSource> source_;
  CheckpointSchedule schedule_;
  Requests requests_;
  bool ending_ = false, publishLast_ = false;
  uint64_t published_ = 0, failures_ = 0;
  std::string lastError_;
  double lastSeconds_ = 0, pauseMaxSeconds_ = 0;

  std::thread thread_;  // last: it uses all members above
};

}  // namespace psd
