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

/// Looks at the updates of shards that a replay makes, in host memory. Used by the replay's thread.
class ReplayWatcher {
 public:
  virtual ~ReplayWatcher() = default;
  /// What the shard holds before the next update.
  virtual void before(uint32_t shard, std::span<const float> weights) = 0;
  /// What that update has made of it, which is the version that it made. `update` has its number in the log.
  virtual void after(const LogRecord& update, uint64_t version, std::span<const float> weights) = 0;
};

/// Runs the updates of a log over a store again, bit for bit. The store has the shards and optimizers with
/// which the log was written. Owned by one thread.
class Replayer {
 public:
  /// `until`: no update of any shard beyond that number is applied; nothing: all are. `samples`: gets to know
  /// what became of the samples that were dealt; null: nobody does.
  explicit Replayer(ParameterStore& store, std::optional<Version> until = {},
                    SamplesReplay* samples = nullptr)
      : store_(store),
        until_(until),
        samples_(samples),
        lanes_(store.makeLanes()),
        passed_(store.blockCount()) {}

  /// From now on only those updates that `choice` takes are made, as if there had been no others: they count
  /// from the version that the shard has. `watcher` (null: nobody) looks on. Both outlive this.
  void choose(ReplayChoice* choice, ReplayWatcher* watcher) {
    choice_ = choice;
    watcher_ = watcher;
  }

  /// From now on each update is made with the lock of its block held, and one of several shards with that of
  /// its group (by group; null: none): others copy the store meanwhile. `scope`, of the calling thread,
  /// outlives this.
  void lockWith(kj::WaitScope& scope, std::vector<std::shared_ptr<ShardLock>> groupLocks) {
    scope_ = &scope;
    groupLocks_ = std::move(groupLocks);
  }

  /// Blocks. An update that the shard has already is passed over; one that leaves a gap, or does not fit the
  /// store, is an Error. An update of several shards is held back until its last part comes: where a daemon
  /// died in between nobody was told of it, and it is made anew or not at all.
  Status apply(LogRecord record);
  uint64_t applied() const { return applied_; }
  /// The number in the log of the last update of the block that was made or not chosen.
  uint64_t reached(uint32_t block) const;
  /// The updates that were not chosen.
  uint64_t leftOut() const { return leftOut_; }
  /// The updates that were run or passed over: the shard had them, or they are beyond `until`.
  uint64_t updates() const { return updates_; }
  /// How many parts of updates of several shards are held back, without their last part.
  uint64_t unfinished() const;

 private:
  /// Whether the record's gradient is one of its block.
  Status fits(const LogRecord& record) const;
  Status run(const LogRecord& record);
  Status runNew(const LogRecord& record);
  Status make(const LogRecord& record);
  Result<std::span<const float>> weightsOf(Shard& shard);
  /// Applies an update to the elements of the shard that lack it.
  Status apply(Shard& shard, const LogRecord& record, const Gradient& gradient, const UpdateScalars& scalars);
  /// Applies an update to the rows of the shard that lack it.
  static Status applyRows(RowShard& shard, const LogRecord& record, const UpdateScalars& scalars);
  Status runAll(std::vector<LogRecord> records);

  ParameterStore& store_;
  const std::optional<Version> until_;
  SamplesReplay* const samples_;
  Lanes lanes_;
  kj::WaitScope* scope_ = nullptr;  // null: nobody else uses the store
  std::vector<std::shared_ptr<ShardLock>> groupLocks_;
  ReplayChoice* choice_ = nullptr;    // null: all
  ReplayWatcher* watcher_ = nullptr;  // null: nobody
  std::vector<uint64_t> passed_;      // updates of each block that were not chosen
  uint64_t leftOut_ = 0;
  std::map<uint32_t, std::vector<LogRecord>> heldBack_;  // of each group, the parts of one update
  uint64_t applied_ = 0, updates_ = 0;
};

/// A store in this machine's memory, cut and optimized as the one that a checkpoint was taken of, without its
/// values.
Result<std::unique_ptr<ParameterStore>> makeStoreOf(const Checkpoint& checkpoint);
/// A store in this machine's memory, cut and optimized as the one that a checkpoint was taken of, with its
/// values. Blocks.
Result<std::unique_ptr<ParameterStore>> openStore(Env& env, const Checkpoint& checkpoint);

/// Whether the log of a checkpoint fits a store as it is cut and optimized now.
bool sameShape(const Manifest& manifest, const ParameterStore& store);

/// `psd replay`: the model as it was after update `until` of each shard, from the newest checkpoint in
/// `folder` that is not beyond it and the log from there. Blocks.
Result<std::unique_ptr<ParameterStore>> rebuild(Env& env, const std::string& folder,
                                                std::optional<Version> until);

/// A model that is not as it was.
struct OtherModel {
  std::unique_ptr<ParameterStore> store;
  uint64_t checkpoint = 0;            ///< number of the one that it begins with
  Version since;                      ///< the update of each shard, at most, that is in that checkpoint
  uint64_t applied = 0, leftOut = 0;  ///< updates of shards
};
/// What becomes of a model when only the chosen updates are made. Begins with the oldest checkpoint from
/// which the log goes on without a gap, whose own updates stay; `until` as for rebuild(), by the numbers of
/// the log. `makeWatcher` (null: nobody) gives who looks on. Blocks.
Result<OtherModel> rebuildChosen(
    Env& env, const std::string& folder, std::optional<Version> until, ReplayChoice choice,
    const std::function<ReplayWatcher*(const ParameterStore& store)>& makeWatcher);

}  // namespace psd
