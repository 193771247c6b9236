#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <kj/async.h>

#include "server/checkpoint/log_reader.h"
#include "server/checkpoint/replay_choice.h"
#include "server/checkpoint/samples_replay.h"
#include "server/checkpoint/store_state.h"

namespace psd {

/// Observes the shard updates that a replay makes, in host memory. Called on the replay's thread.
class ReplayWatcher {
 public:
  virtual ~ReplayWatcher() = default;
  /// `weights`: the shard's weights before the next update.
  virtual void before(uint32_t shard, std::span<const float> weights) = 0;
  /// `weights`: the shard's weights after the update, which produced `version`. `update` has its number in
  /// the log.
  virtual void after(const LogRecord& update, uint64_t version, std::span<const float> weights) = 0;
};

/// How far a replay goes: the number of the last update of each block. A value type.
class ReplayEnd {
 public:
  /// To the end of the log.
  ReplayEnd() = default;
  /// To the same update of all blocks; nullopt: to the end.
  ReplayEnd(std::optional<Version> all) : all_(all) {}
  ReplayEnd(Version all) : all_(all) {}
  explicit ReplayEnd(std::vector<Version> blocks) : blocks_(std::move(blocks)) {}

  /// nullopt: to the end of the log.
  std::optional<Version> of(size_t block) const {
    return block < blocks_.size() ? std::optional(blocks_[block]) : all_;
  }
  bool open() const { return !all_ && blocks_.empty(); }

 private:
  std::optional<Version> all_;
  std::vector<Version> blocks_;
};

/// Replays the updates of a log over a store, bit for bit. The store has the shards and optimizers with which
/// the log was written. Owned by one thread.
class Replayer {
 public:
  /// `until`: updates beyond it are skipped. `samples`: is notified
  /// of the assignments and updates, to track which samples are done; may be null.
  explicit Replayer(ParameterStore& store, ReplayEnd until = {}, SamplesReplay* samples = nullptr)
      : store_(store),
        until_(std::move(until)),
        samples_(samples),
        lanes_(store.makeLanes()),
        passed_(store.blockCount()) {}

  /// From now on applies only the updates that `choice` takes, as if there had been no others: they are
  /// numbered from the version that the shard has. `watcher` may be null. Both outlive this.
  void choose(ReplayChoice* choice, ReplayWatcher* watcher) {
    choice_ = choice;
    watcher_ = watcher;
  }

  /// From now on holds a block's lock during each update, and the group's lock during an update of several
  /// shards (`groupLocks` by group; null: none), because others copy the store meanwhile. `scope` belongs to
  /// the calling thread and outlives this.
  void lockWith(kj::WaitScope& scope, std::vector<std::shared_ptr<ShardLock>> groupLocks) {
    scope_ = &scope;
    groupLocks_ = std::move(groupLocks);
  }

  /// Blocks. Skips an update that the shard has already; an update that leaves a gap, or does not fit the
  /// store, is an Error. Holds back the parts of an update of several shards until the last part arrives: if
  /// a daemon died in between, the update was not acknowledged and is either logged again or never happened.
  /// Takes the record's content if it holds it back.
  Status apply(LogRecord& record);
  uint64_t applied() const { return applied_; }
  /// The log's number of the block's last update that was applied or not chosen.
  uint64_t reached(uint32_t block) const;
  /// Number of updates not chosen.
  uint64_t leftOut() const { return leftOut_; }
  /// Number of updates applied or skipped: the shard had them, or they are beyond `until`.
  uint64_t updates() const { return updates_; }
  /// Number of parts held back of updates of several shards whose last part is missing.
  uint64_t unfinished() const;

 private:
  /// Checks that the record's gradient fits its block.
  Status fits(const LogRecord& record) const;
  Status run(const LogRecord& record);
  Status runNew(const LogRecord& record);
  Status make(const LogRecord& record);
  Result<std::span<const float>> weightsOf(Shard& shard);
  /// Applies an update to the elements of the shard that lack it.
  Status apply(Shard& shard, const LogRecord& record, const Gradient& gradient, const UpdateScalars& scalars);
  /// Applies an update to the rows of the shard that lack it.
  static Status applyRows(RowShard& shard, const LogRecord& record, const UpdateScalars& scalars);
  Status applyAll(std::vector<LogRecord> records);

  ParameterStore& store_;
  const ReplayEnd until_;
  SamplesReplay* const samples_;
  Lanes lanes_;
  kj::WaitScope* scope_ = nullptr;  // null: exclusive use of the store
  std::vector<std::shared_ptr<ShardLock>> groupLocks_;
  ReplayChoice* choice_ = nullptr;    // null: all
  ReplayWatcher* watcher_ = nullptr;  // null: none
  std::vector<uint64_t> passed_;      // per block, the updates not chosen
  uint64_t leftOut_ = 0;
  std::map<uint32_t, std::vector<LogRecord>> pendingParts_;  // per parameter group, the parts of one update
  uint64_t applied_ = 0, updates_ = 0;
};

/// An uninitialized store in host memory with the shards and optimizers of a checkpoint.
Result<std::unique_ptr<ParameterStore>> makeStoreOf(const Checkpoint& checkpoint);
/// A store in host memory with the shards, optimizers and values of a checkpoint. Blocks.
Result<std::unique_ptr<ParameterStore>> openStore(Env& env, const Checkpoint& checkpoint);

/// Whether the log of a checkpoint fits a store's current shards and optimizers.
bool sameShape(const Manifest& manifest, const ParameterStore& store);

/// The model at `until`, rebuilt from the newest checkpoint in `folder` that is not beyond it, and the log
/// from there. Blocks.
Result<std::unique_ptr<ParameterStore>> rebuild(Env& env, const std::string& folder, const ReplayEnd& until);

/// A counterfactual model: what training would have produced without some updates.
struct CounterfactualModel {
  std::unique_ptr<ParameterStore> store;
  uint64_t checkpoint = 0;            ///< number of the checkpoint that it starts from
  Version since;                      ///< highest update of any shard that is in that checkpoint
  uint64_t applied = 0, leftOut = 0;  ///< number of shard updates
};
/// Rebuilds a model from only the chosen updates. Starts from the oldest checkpoint from which the log
/// continues without a gap, whose own updates stay; `until` as for rebuild(), in the numbering of the log.
/// `makeWatcher` returns the observer; may be null. Blocks.
Result<CounterfactualModel> rebuildCounterfactual(
    Env& env, const std::string& folder, std::optional<Version> until, ReplayChoice choice,
    const std::function<ReplayWatcher*(const ParameterStore& store)>& makeWatcher);

}  // namespace psd
