#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <kj/mutex.h>

#include "server/checkpoint/checkpoint_schedule.h"
#include "server/checkpoint/disk_use.h"
#include "server/checkpoint/durability_config.h"
#include "server/checkpoint/locked_folder.h"
#include "server/checkpoint/log_writer.h"
#include "server/checkpoint/rows_copy.h"
#include "server/checkpoint/store_state.h"
#include "server/status/daemon_status.h"

namespace psd {

/// What to save: a store in training, and how to read its shards.
struct CheckpointSource {
  /// One parameter group and its policy.
  struct Group {
    std::string policy;  ///< name of the policy, for the manifest
    bool live = false;   ///< updates take no lock, so the copy takes none either
    /// Lock held while an update spans several of the group's shards; null: no update does.
    std::shared_ptr<ShardLock> together = nullptr;
    bool rounds = false;  ///< an update is a round, and the versions of the group's shards count them
    bool operator==(const Group&) const = default;  // another policy of the same kind has another lock
  };
  std::shared_ptr<ParameterStore> store;
  /// The current groups; policies may change while the daemon runs. Thread-safe.
  std::function<std::vector<Group>()> groups;
  std::shared_ptr<LogWriter> log;           ///< null: there is no log
  uint64_t logBytesBefore = 0;              ///< bytes of the previous daemon's log that no checkpoint covers
  uint64_t logRecordsBefore = 0;            ///< records in these, which were replayed
  std::shared_ptr<GuardedSamples> samples;  ///< the sample plan; null: there is none
  std::shared_ptr<LockedFolder> folder;     ///< the folder it is saved in; null: it need not be held
  std::set<uint64_t> damaged;               ///< checkpoints there that are unusable
  std::shared_ptr<std::mutex>
      checkpointMutex;  ///< held while a checkpoint of the store is written; null: no others are
  std::function<Status()> beforeAnnounce =
      nullptr;  ///< see Durability::beforeCheckpointAnnounced(); may be null
};

/// Takes checkpoints of a store during training, on its own thread. Copies each shard under its lock into
/// preallocated memory and writes it to disk without the lock; RowsCopy handles row shards. Copies shards
/// that are updated together between two such updates. Failures are logged and retried; earlier checkpoints
/// stay intact. Thread-safe.
class Checkpointer {
 public:
  /// `nextNumber`: number of the first checkpoint. `env` outlives the checkpointer.
  Checkpointer(Env& env, DurabilityConfig config, CheckpointSource source, uint64_t nextNumber);
  /// Stops the thread without a final checkpoint.
  ~Checkpointer();

  /// Takes a checkpoint that starts after the call. Blocks. ErrorCode::shuttingDown if the thread stops
  /// first.
  Status takeNow();
  /// Requests a checkpoint now, without waiting for it.
  void requestCheckpoint();
  /// Takes a final checkpoint if anything changed since the previous one, and stops the thread. Blocks.
  /// Idempotent.
  Status finish();
  /// Applies the `every_…` keys of this configuration.
  void follow(const DurabilityConfig& config);

  /// The checkpointer's part of the status, without the type and the path.
  DurabilityStatus status() const;

 private:
  /// Outcome of one checkpoint.
  struct Report {
    std::string path;
    double finishedAt = 0;
    double seconds = 0;
    double pauseSeconds = 0;  ///< longest time that an update waited for a copy
    uint64_t bytes = 0;
    /// What the checkpoint covers: updates summed over all shards, and bytes of the log up to its position.
    CheckpointSchedule::Progress progress;
  };

  void run();
  bool due() const;
  Status take();
  /// Writes one checkpoint. Returns nullopt if a group's policy changed meanwhile: the copies may miss
  /// updates made under the new policy.
  Result<std::optional<Report>> write(uint64_t number);
  /// Whether the log may continue from the next checkpoint. A broken log restarts only if a checkpoint exists
  /// already. Otherwise a daemon that dies before it finishes the next checkpoint leaves updates that no
  /// checkpoint leads to, and its successor cannot distinguish them from updates whose checkpoint was
  /// removed.
  Result<bool> mayStartLog() const;
  /// Syncs the log once the copies are made, so that they hold no more than the log. If the sync fails and no
  /// durability was promised for the log yet, abandons the log, and the manifest names none.
  Status finishLog(Manifest& manifest);
  /// Checkpoints here that belong to a checkpoint of the whole model: the newest one and the previous one.
  Result<std::set<uint64_t>> partsOfWhole() const;
  /// Removes checkpoints beyond `keep`.
  Status prune();
  /// Shards [first, last) of a checkpoint; all of them are copied before the first is written.
  struct Span {
    size_t first = 0, last = 0;
    bool operator==(const Span&) const = default;
  };
  /// The newest checkpoint, as a base for the next one.
  struct Base {
    ManifestBase name;
    std::vector<BaseSnapshot> rowShards;
    uint64_t length = 1;  ///< length of the chain of checkpoints that ends with it
  };
  /// Whether the next checkpoint may omit the rows that have not changed since base_.
  bool mayBeIncremental() const;
  /// The base for the next checkpoint, now that this one is finished.
  Base baseAfter(const Manifest& manifest, const CheckpointWriter& writer,
                 const std::vector<CheckpointSource::Group>& groups) const;
  /// Starts the copy of a row shard, whose lock is held. `index`: its index in the manifest. `incremental`:
  /// copy only the rows changed since base_.
  std::unique_ptr<RowsCopy> beginRows(RowShard& shard, size_t index, Manifest& manifest, bool live,
                                      bool incremental) const;
  /// Cuts the shards into spans: one shard each, except that shards updated together share a span.
  static std::vector<Span> spansOf(const Manifest& manifest,
                                   const std::vector<CheckpointSource::Group>& groups);
  /// Allocates the copies for any span: image k serves the k-th shard of a span.
  Status makeImages(std::vector<Span> spans);
  /// Copies the shards of a span, starts the copies of its row shards, and updates the longest pause.
  Status copySpan(const Span& span, Manifest& manifest, const std::vector<CheckpointSource::Group>& groups,
                  const Lanes& lanes, std::vector<std::unique_ptr<RowsCopy>>& rows, bool incremental,
                  double& pauseSeconds);
  /// Writes the rows of a span's row shards.
  Status writeRows(const Span& span, std::vector<std::unique_ptr<RowsCopy>>& rows, Manifest& manifest,
                   CheckpointWriter& writer, double& pauseSeconds);
  /// Records in `entry` what state the copy has. `locked`: the block's lock is held.
  void beginShard(const ParameterBlock& block, ManifestBlock& entry, bool locked) const;
  /// The current sample plan; nullopt if there is none.
  std::optional<SavedSamples> samples() const;
  Status copyShard(Shard& shard, ManifestBlock& entry, bool live, ShardImage& image, Lane& lane,
                   kj::WaitScope& scope, double& pauseSeconds) const;
  /// The number of updates summed over all shards.
  uint64_t updates() const;
  CheckpointSchedule::Progress progress() const;
  CheckpointSchedule::Terms termsOf(const DurabilityConfig& config) const;
  /// Measures the folder's disk usage.
  void measure();

  Env& env_;
  const DurabilityConfig config_;
  const CheckpointSource source_;

  // Used only by the thread.
  uint64_t nextNumber_;
  std::vector<Span> spans_;                   // the spans that images_ is sized for
  std::vector<ShardImage> images_;            // buffers for the copies of one of spans_
  uint64_t savedBuffers_ = 0;                 // number of the buffers in the newest checkpoint
  std::optional<SavedSamples> savedSamples_;  // as in the newest checkpoint, or as at the start
  std::optional<Base> base_;                  // nullopt: the next checkpoint holds all rows

  mutable std::mutex mutex_;  // guards the members below
  CheckpointSchedule schedule_;
  DiskUse disk_;                  // as of the newest measure()
  uint64_t loggedAtMeasure_ = 0;  // bytes written to the log at that time
  std::condition_variable wake_;
  std::condition_variable taken_;
  bool ending_ = false;
  uint64_t requested_ = 0;  // calls of takeNow()
  uint64_t served_ = 0;     // of these, the calls before the start of the newest ended checkpoint
  bool finalRequested_ = false;
  Status outcome_;       // of the newest attempt
  Status finalOutcome_;  // of the final checkpoint that finish() takes
  std::optional<Report> report_;
  double pauseSecondsMax_ = 0;
  uint64_t copyBytes_ = 0;  // memory that the images take
  uint64_t count_ = 0;
  uint64_t failures_ = 0;
  std::string lastError_;  // empty if the newest attempt succeeded

  std::thread thread_;  // last: it uses all members above
};

}  // namespace psd
