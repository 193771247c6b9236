#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "server/checkpoint/checkpointer.h"
#include "server/checkpoint/departed.h"
#include "server/checkpoint/log_reader.h"
#include "server/checkpoint/replicator.h"
#include "server/checkpoint/samples_replay.h"
#include "server/checkpoint/whole.h"

namespace psd {

/// Persists a model beyond the life of the daemon: finds it at startup and saves it during training.
/// Thread-safe from begin() on: several threads may call begin(), one after the other, while others call
/// status().
class Durability {
 public:
  /// Takes the folder for this process. Errors name the folder. `env` outlives the object. `pending`: budget
  /// of the bytes that wait for the log's disk. `syncSeconds`: see LogWriter::open().
  static Result<std::unique_ptr<Durability>> open(
      Env& env, const DurabilityConfig& config,
      std::shared_ptr<ByteBudget> pending = ByteBudget::make(UINT64_MAX), Histogram* syncSeconds = nullptr);

  /// The checkpoint to resume from, according to `resume`; nullopt if nothing was saved yet. Blocks; logs
  /// damaged checkpoints, and the contents that `resume` ignores.
  Result<std::optional<Checkpoint>> find();
  /// Restores find()'s checkpoint into a store and into samples(), replays the log's updates after it, and
  /// logs what was not restored. Blocks.
  Status restore(const Checkpoint& checkpoint, ParameterStore& store);

  /// The sample plan, which is saved with the model. Any thread may use it under its lock.
  const std::shared_ptr<GuardedSamples>& samples() const { return samples_; }
  /// For a daemon with a standby: log records also go to `log`, or only there if there is no log on disk.
  /// Call before begin().
  void replicateTo(std::shared_ptr<Replicator> log) { replicated_ = std::move(log); }
  /// Sets a callback that runs after each checkpoint is complete and before it is announced; if it fails, the
  /// checkpoint counts as failed. Call before begin(). `call` is thread-safe.
  void beforeCheckpointAnnounced(std::function<Status()> call) { beforeAnnounce_ = std::move(call); }
  /// Writes a checkpoint of the current model to a folder of `env` for another daemon; returns its path. The
  /// records of replicateTo()'s log from this call on continue from the checkpoint. ErrorCode::notReady
  /// before begin(). Blocks.
  Result<std::string> copyTo(Env& env, const std::string& folder);
  /// Writes a checkpoint of `source` to a folder of `env`, with or without a standby; returns its path.
  /// ErrorCode::notReady before begin(). Blocks.
  Result<std::string> copyTo(Env& env, const std::string& folder, CheckpointSource source) const;
  /// Logs an assignment of samples, if there is a log; must precede any push of its gradient. Returns its
  /// LSN.
  uint64_t assigned(const LoggedAssignment& assignment) const;
  /// Resolves, on the calling event loop, when the assignment with that LSN and all records before it are
  /// durable, or the log has failed; immediately without a log.
  kj::Promise<void> whenAssignmentDurable(uint64_t assignment) const;

  /// The model is initialized: saves it from now on, in place of what was saved before. A log without a base
  /// promises durability only after a first checkpoint, which is taken here and retried automatically if it
  /// fails. Blocks.
  Status begin(CheckpointSource source);
  /// Like begin(), but does not wait for that first checkpoint: until it is done, pushes survive only if this
  /// daemon, just promoted from standby, does not fail too. No-op if this store is saved already.
  void beginAsync(CheckpointSource source);
  /// Runs `change`, which replaces what the model of begin() holds, while no copy of it is made, and saves
  /// the result from scratch: takes a checkpoint, and standbys get a new copy. Returns the error of `change`.
  /// `saved`: the outcome of the checkpoint, which is retried if it failed. Blocks; no update may be in
  /// progress.
  Status replace(CheckpointSource source, const std::function<Status()>& change, Status& saved);
  /// Stops saving the source of begin() and releases its memory. Blocks.
  void stop();
  /// Syncs everything logged so far; an Error if there is no log, or it is broken. Blocks.
  Status flushLog();
  /// Takes a checkpoint; returns its path. ErrorCode::notReady before begin(). Blocks.
  Result<std::string> checkpointNow();
  /// The newest checkpoint. ErrorCode::notReady if there is none. Blocks.
  Result<NewestPart> newestPart();
  /// Records a checkpoint of the whole model, and pins this daemon's part of it. ErrorCode::unavailable if
  /// that part does not exist, ErrorCode::invalidArgument if it has a log. Blocks.
  Status recordWhole(const WholeCheckpoint& whole);
  /// Final save of unsaved changes at shutdown; no update may follow. Blocks.
  Status finish();

  /// The finished ranks that the previous daemon of this run saved. A damaged file is logged and ignored; a
  /// file that cannot be read is an Error. Blocks.
  Result<std::optional<Departed>> departed() const;
  /// Saves the finished ranks for the next daemon; no-op after clearDepartedRanks(). Blocks.
  Status saveDepartedRanks(const Departed& departed);
  /// Removes the saved finished ranks: the next daemon starts a new run. Blocks.
  Status clearDepartedRanks();

  /// Checks that this process still holds the folder; see LockedFolder::keep(). Blocks.
  Status keepFolder() const { return folder_ ? folder_->keep() : Status(); }

  /// Applies the `every_…` keys of this configuration; the others keep their values.
  void follow(const DurabilityConfig& config);

  DurabilityStatus status() const;

 private:
  Durability(Env& env, const DurabilityConfig& config, std::shared_ptr<ByteBudget> pending,
             Histogram* syncSeconds)
      : env_(env),
        config_(config),
        pending_(std::move(pending)),
        syncSeconds_(syncSeconds),
        currentConfig_(config) {}

  bool logs() const { return config_.type == DurabilityConfig::Type::log; }
  /// Logs which contents of the folder are ignored.
  Status warnIgnoredContents() const;
  /// An Error if the log holds updates that this checkpoint does not lead to and that would be lost.
  /// find() in a folder of checkpoints, or a checkpoint; `automatic`: by "auto".
  Result<std::optional<Checkpoint>> newestIn(const std::string& path, bool automatic);
  Status checkNoNewerUpdates(const Checkpoint& checkpoint) const;
  /// Whether one of the damaged checkpoints may have a log.
  bool damagedMayHaveLog() const;
  /// Replays the log over the store. If the log was written with other shards or another optimizer, replays
  /// it over a store of that shape, takes a checkpoint of the result and restores it.
  Status replayLog(const Checkpoint& checkpoint, ParameterStore& store, SamplesReplay samples);
  void note(const Restored& restored, const std::string& path) const;
  std::shared_ptr<LogWriter> openLog(const ParameterStore& store);
  /// Starts to save; the log is in use on return. Returns whether a first checkpoint must be taken.
  bool beginWith(CheckpointSource source);
  std::shared_ptr<Checkpointer> checkpointer() const;
  bool saves(const ParameterStore& store) const;
  /// Sets checkpointer_ and returns the previous one.
  std::shared_ptr<Checkpointer> setCheckpointer(std::shared_ptr<Checkpointer> checkpointer);

  Env& env_;
  const DurabilityConfig config_;
  const std::shared_ptr<ByteBudget> pending_;
  Histogram* const syncSeconds_;
  const std::shared_ptr<GuardedSamples> samples_ = std::make_shared<GuardedSamples>();
  std::shared_ptr<LockedFolder> folder_;
  std::set<uint64_t> damaged_;  // checkpoints that find() skipped
  uint64_t nextNumber_ = 1;
  bool ownFolder_ = false;        // find() searched the folder that this daemon saves to
  std::optional<LogEnd> logEnd_;  // where the next log continues
  uint64_t logHistory_ = 0;

  std::function<Status()> beforeAnnounce_;
  std::shared_ptr<Replicator> replicated_;  // null: no standby
  const std::shared_ptr<std::mutex> checkpointMutex_ =
      std::make_shared<std::mutex>();  // checkpoints of the store

  std::mutex lifecycleMutex_;                   // serializes begin() and finish()
  mutable std::mutex mutex_;                    // guards the members below
  DurabilityConfig currentConfig_;              // config_ with the changes of follow()
  std::shared_ptr<Checkpointer> checkpointer_;  // null until there is something to save
  std::shared_ptr<LogWriter> log_;              // null without a log, and until there is something to save
  std::optional<CheckpointSource> source_;      // with replication: the source of copies
};

}  // namespace psd
