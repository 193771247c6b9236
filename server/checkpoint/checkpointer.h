#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <kj/mutex.h>
#include <nlohmann/json.hpp>

#include "server/checkpoint/checkpoint_schedule.h"
#include "server/checkpoint/durability_config.h"
#include "server/checkpoint/log_writer.h"
#include "server/checkpoint/store_state.h"

namespace psd {

/// A plan that the control loop deals by and the checkpointer saves.
using GuardedSamples = kj::MutexGuarded<SamplePlan>;

/// What is saved: a store that is being trained, and how it may be read.
struct CheckpointSource {
  /// Who rules a parameter group.
  struct Group {
    std::string policy;  ///< its name, for the manifest
    bool live = false;   ///< updates take no lock, so reading takes none either
    /// Resolves when an update that is in some shards, and not yet in all that it goes into, is whole. Empty:
    /// none is of several. Called on the checkpointer's thread.
    std::function<kj::Promise<void>()> rest;
  };
  std::shared_ptr<ParameterStore> store;
  /// The groups as they are ruled now: policies may change while the daemon runs. Called on the
  /// checkpointer's thread.
  std::function<std::vector<Group>()> groups;
  std::shared_ptr<LogWriter> log;           ///< null: there is none
  std::shared_ptr<GuardedSamples> samples;  ///< likewise
};

/// Takes checkpoints of a store while it is trained, on a thread of its own: each shard is copied under its
/// lock, into memory that is there already, and written to the disk without. A failure is logged and tried
/// again; what was saved before stays. Thread-safe.
class Checkpointer {
 public:
  /// `nextNumber`: of the first checkpoint. `env` outlives it.
  Checkpointer(Env& env, DurabilityConfig config, CheckpointSource source, uint64_t nextNumber);
  /// Ends the thread, without a last checkpoint.
  ~Checkpointer();

  /// Takes a checkpoint now. Blocks.
  Status takeNow();
  /// Takes a last checkpoint, if anything changed since the one before, and ends the thread. Blocks. Further
  /// calls do nothing.
  Status finish();

  /// For the status document.
  nlohmann::ordered_json status() const;

 private:
  /// How one checkpoint went.
  struct Report {
    std::string path;
    double finishedAt = 0;
    double seconds = 0;
    double pauseMs = 0;  ///< longest time that a shard's lock was held
    uint64_t bytes = 0;
    uint64_t updates = 0;  ///< in it, of all shards together
  };

  void run();
  bool due() const;
  Status take();
  Result<Report> write(uint64_t number);
  /// Removes what `keep` does not keep.
  Status prune();
  /// Until what the copies hold is in the log, whole. Blocks.
  void waitForLog() const;
  /// Whether some group is read without a lock now.
  bool readsLive() const;
  /// The plan of the samples as it is now; nothing where there is none.
  std::optional<SavedSamples> samples() const;
  /// Copies one shard; adds to the longest pause.
  Status copyShard(Shard& shard, ManifestShard& entry, ShardImage& image, Lane& lane, double& pauseMs) const;
  /// That all shards together have made.
  uint64_t updates() const;

  Env& env_;
  const DurabilityConfig config_;
  const CheckpointSource source_;

  // The thread's alone.
  CheckpointSchedule schedule_;
  uint64_t nextNumber_;
  std::optional<ShardImage> image_;
  std::optional<SavedSamples> savedSamples_;  // or what was there at the start

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::condition_variable taken_;
  bool ending_ = false;
  bool wanted_ = false;  // by takeNow()
  bool lastOne_ = false;
  Status outcome_;  // of the newest try
  std::optional<Report> report_;
  double pauseMsMax_ = 0;
  uint64_t count_ = 0;
  uint64_t failures_ = 0;
  std::string lastError_;  // empty when the newest try succeeded

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace psd
