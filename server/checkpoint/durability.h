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
#include "server/checkpoint/replicated_log.h"
#include "server/checkpoint/samples_replay.h"
#include "server/checkpoint/whole.h"

namespace psd {

/// Keeps a model beyond the life of the daemon: finds it at the start and saves it while it is trained.
/// Thread-safe from begin() on: several threads may begin, one after the other, while others ask for
/// status().
class Durability {
 public:
  /// Takes the folder for this process. Errors name it. `env` outlives the object. `pending`: what may wait
  /// for the log's disk. `syncSeconds`: see LogWriter::open().
  static Result<std::unique_ptr<Durability>> open(
      Env& env, const DurabilityConfig& config,
      std::shared_ptr<ByteBudget> pending = ByteBudget::make(UINT64_MAX), Histogram* syncSeconds = nullptr);

  /// The checkpoint to go on from, as `resume` says; nothing where nothing was saved yet. Blocks; logs what
  /// was damaged, and what `resume` leaves aside.
  Result<std::optional<Checkpoint>> find();
  /// Fills a store with what find() gave, and samples(), runs the log's updates after it, and logs what was
  /// not taken over. Blocks.
  Status restore(const Checkpoint& checkpoint, ParameterStore& store);

  /// The plan by which samples are dealt, which is saved with the model. Any thread may use it under its
  /// lock.
  const std::shared_ptr<GuardedSamples>& samples() const { return samples_; }
  /// Another daemon follows this one, or will: what is logged goes to `log` too, or alone where there is no
  /// log on the disk. Before begin().
  void replicateTo(std::shared_ptr<ReplicatedLog> log) { replicated_ = std::move(log); }
  /// Called with each checkpoint that is complete, before anybody hears of it; where it fails, the checkpoint
  /// counts as one that failed. Before begin(). `call` is thread-safe.
  void beforeCheckpointTold(std::function<Status()> call) { beforeTold_ = std::move(call); }
  /// Writes a checkpoint of the model as it is now to a folder of `env`, where another daemon is to find it;
  /// gives its path. The records that come from replicateTo()'s log since before the call lead on from it.
  /// ErrorCode::notReady before begin(). Blocks.
  Result<std::string> copyTo(Env& env, const std::string& folder);
  /// Writes a checkpoint of `source` to a folder of `env`, whether a standby follows or not; gives its path.
  /// ErrorCode::notReady before begin(). Blocks.
  Result<std::string> copyTo(Env& env, const std::string& folder, CheckpointSource source) const;
  /// Writes down a deal of samples, where there is a log: before any push of its gradient. Gives its number.
  uint64_t dealt(const LoggedDeal& deal) const;
  /// Resolves, on the calling event loop, when the deal with that number and all before it outlive the
  /// daemon, or cannot; at once without a log.
  kj::Promise<void> whenKept(uint64_t deal) const;

  /// The model has its values: it is saved from now on, instead of what was saved before. With a log and
  /// nothing that it goes on from, what is pushed is safe only after a first checkpoint, which is taken here;
  /// where that fails it is tried again by itself. Blocks.
  Status begin(CheckpointSource source);
  /// begin() that does not wait for that first checkpoint: what is pushed until then counts on the daemon
  /// that this one was the standby of having been gone, and on none dying again. Nothing where this store is
  /// saved already.
  void beginSoon(CheckpointSource source);
  /// Ends the saving of what begin() was given, and keeps nothing of it in memory. Blocks.
  void stop();
  /// Brings what was logged until now to the disk; an Error where there is no log, or it is broken. Blocks.
  Status flushLog();
  /// Takes a checkpoint; gives its path. ErrorCode::notReady before begin(). Blocks.
  Result<std::string> checkpointNow();
  /// The newest checkpoint. ErrorCode::notReady where there is none. Blocks.
  Result<NewestPart> newestPart();
  /// Names a checkpoint of the whole model, of which this daemon's is a part and stays from now on.
  /// ErrorCode::unavailable where it is not there, invalidArgument where it has a log. Blocks.
  Status keepWhole(const WholeCheckpoint& whole);
  /// The daemon ends, and no update comes any more: saves what is not saved yet. Blocks.
  Status finish();

  /// The trainers that an earlier daemon, whose work this one continues, saw come and go. A damaged file is
  /// told of in the log; a file that cannot be read is an Error. Blocks.
  Result<std::optional<Departed>> departed() const;
  /// Keeps for a daemon after this one which trainers have come and gone; nothing after
  /// forgetFinishedRanks(). Blocks.
  Status keepFinishedRanks(const Departed& departed);
  /// Forgets which trainers have come and gone: the next daemon begins a run of its own. Blocks.
  Status forgetFinishedRanks();

  /// Takes over the `every_…` keys of this configuration; the others stay as they were.
  void follow(const DurabilityConfig& config);

  DurabilityStatus status() const;

 private:
  Durability(Env& env, const DurabilityConfig& config, std::shared_ptr<ByteBudget> pending,
             Histogram* syncSeconds)
      : env_(env), config_(config), pending_(std::move(pending)), syncSeconds_(syncSeconds), now_(config) {}

  bool logs() const { return config_.type == DurabilityConfig::Type::log; }
  /// Logs which contents of the folder are not used.
  Status noteReplaced() const;
  /// An Error where updates would be lost that are in the log and that this checkpoint does not lead to.
  Status checkNothingIsNewer(const Checkpoint& checkpoint) const;
  /// Whether a log may go on from one of the checkpoints that are damaged.
  bool damagedMayHaveLog() const;
  /// Replays the log over the store; where it was written with other shards or another optimizer, over a
  /// store of that shape, of which a checkpoint is then taken and restored.
  Status replayLog(const Checkpoint& checkpoint, ParameterStore& store, SamplesReplay samples);
  void note(const Restored& restored, const std::string& path) const;
  std::shared_ptr<LogWriter> openLog(const ParameterStore& store);
  /// Begins to save; a log is in use when it returns. Gives whether a first checkpoint is to be taken.
  bool beginWith(CheckpointSource source);
  std::shared_ptr<Checkpointer> checkpointer() const;
  bool saves(const ParameterStore& store) const;
  /// Sets checkpointer_, and returns the one that was there before.
  std::shared_ptr<Checkpointer> setCheckpointer(std::shared_ptr<Checkpointer> checkpointer);

  Env& env_;
  const DurabilityConfig config_;
  const std::shared_ptr<ByteBudget> pending_;
  Histogram* const syncSeconds_;
  const std::shared_ptr<GuardedSamples> samples_ = std::make_shared<GuardedSamples>();
  std::shared_ptr<HeldFolder> folder_;
  std::set<uint64_t> damaged_;  // checkpoints that find() passed over
  uint64_t nextNumber_ = 1;
  bool ownFolder_ = false;        // find() looked where this daemon saves
  std::optional<LogEnd> logEnd_;  // what the next log goes on from
  uint64_t logHistory_ = 0;

  std::function<Status()> beforeTold_;
  std::shared_ptr<ReplicatedLog> replicated_;                                      // null: nobody follows
  const std::shared_ptr<std::mutex> oneAtATime_ = std::make_shared<std::mutex>();  // checkpoints of the store

  std::mutex beginning_;                        // held by begin() and finish()
  mutable std::mutex mutex_;                    // guards what follows
  DurabilityConfig now_;                        // config_ as follow() left it
  std::shared_ptr<Checkpointer> checkpointer_;  // once there is something to save
  std::shared_ptr<LogWriter> log_;              // null without a log, and until there is something to save
  std::optional<CheckpointSource> source_;      // where others follow: what there is to copy
};

}  // namespace psd
