#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/policy/round_options.h"
#include "server/policy/row_updates.h"
#include "server/policy/update_policy.h"

namespace psd {

/// One trainer's gradient for one round. Immutable once the round is closed.
struct RoundPart {
  TrainerRef trainer;
  uint32_t samples = 0;
  uint32_t localSteps = 0;  ///< that the trainer took by itself; 0: it is the gradient of one step
  SharedAverage shares;     ///< who else's gradients it is the average of
  Step step;
  std::optional<uint64_t> round;  ///< whose parameters it was computed from; nothing: of one before
  uint64_t late = 0;              ///< rounds that closed since, before it came
  /// By the group's shards and then by its row shards; empty: not there yet, or not needed.
  std::vector<StagedGradient> shards;
  std::vector<StagedRows> rows;
};

/// Makes one update of all blocks of a parameter group of the gradients of a closed round: has the aggregator
/// say how they are combined, makes the rows that are new, and applies the combination to one block after the
/// other, each under its lock. Where the rows find no room, nothing of the round is applied. Used by one
/// caller at a time, on any event loop.
class RoundUpdater {
 public:
  using Round = std::shared_ptr<const std::vector<std::shared_ptr<RoundPart>>>;  ///< by rank; at least one
  struct Outcome {
    Result<uint64_t> logged;  ///< number of the round's last update in the log, 0 without a log
    size_t applied = 0;       ///< blocks that have the update
  };

  RoundUpdater(const PolicyScope& scope, const RoundOptions& options);

  /// The group's blocks in the order of their numbers: shards, then row shards.
  const std::vector<ParameterBlock*>& blocks() const { return blocks_; }
  size_t shardCount() const { return shards_.size(); }
  /// `first`: by block, its version when round 0 opened.
  kj::Promise<Outcome> apply(Round round, std::vector<int64_t> first);

 private:
  /// A round on its way through the blocks.
  struct Work {
    Round round;
    std::vector<int64_t> first;
    std::vector<double> weights;  // of the round's parts
    Combination combination;
    std::vector<Combination> ofShards;   // by shard, where the aggregator goes by tensors; else empty
    std::vector<StagedRows> rows;        // what the round combines to, by row shard
    std::vector<PreparedRows> prepared;  // by row shard, of those that were visited
  };
  using WorkPtr = std::shared_ptr<Work>;
  /// What a shard has of a tensor.
  struct Piece {
    size_t shard;           // in shards_
    uint64_t begin, count;  // elements of the shard
    uint64_t padding;       // behind them, which belong to no tensor
  };
  struct TensorPieces {
    std::string name;
    std::vector<Piece> pieces;  // in the order of the tensor's elements
  };

  static std::vector<TensorPieces> piecesOf(const PolicyScope& scope, const std::vector<Shard*>& shards);
  /// How the gradients become one in a shard.
  static const Combination& combinationIn(const Work& work, size_t shard) {
    return work.ofShards.empty() ? work.combination : work.ofShards[shard];
  }

  kj::Promise<Result<SquaredDistances>> addDistances(WorkPtr work, SquaredDistances sum, size_t next);
  /// Sets how the gradients become one in the tensors from `next` on.
  kj::Promise<Status> weighTensors(WorkPtr work, size_t next);
  /// Adds the products of a tensor's contributions over its pieces from `next` on.
  kj::Promise<Result<InnerProducts>> addProducts(WorkPtr work, const TensorPieces& tensor, InnerProducts sums,
                                                 size_t next);
  /// Sets how the gradients become one, and makes those of rows one.
  kj::Promise<Status> combine(WorkPtr work);
  /// Sets the scale that a clipped norm asks for, which is taken over all blocks of the group.
  kj::Promise<Status> clip(WorkPtr work);
  /// Evicts the rows that are due in the row shards from `next` on, and makes those that are new; of these
  /// all of the round, or none.
  kj::Promise<Status> makeRows(WorkPtr work, size_t next);
  /// Takes the new rows out of the last of work->prepared, and of those before.
  kj::Promise<void> takeBackRows(WorkPtr work);
  /// ‖g‖² of what the round combines to, over the shards from `next` on and all rows.
  kj::Promise<Result<double>> addSquares(WorkPtr work, double sum, size_t next);
  /// Applies the round to the blocks from `next` on, one after the other.
  kj::Promise<Outcome> applyBlocks(WorkPtr work, size_t next);
  /// Applies the round to one block, with the block's lock held.
  kj::Promise<Status> applyBlock(WorkPtr work, size_t index, ByteBudget::Lease room);
  kj::Promise<Status> update(WorkPtr work, size_t index, const UpdateScalars& scalars);
  /// Applies the round to one shard and logs it: from the gradient that the log gets, so that replaying it
  /// gives the same bits.
  kj::Promise<Status> updateLogged(WorkPtr work, size_t index, const UpdateScalars& scalars,
                                   ByteBudget::Lease room);
  Status updateRowsOf(Work& work, size_t index, const UpdateScalars& scalars, ByteBudget::Lease room);
  /// Counts an update that a round made of a block, and notes whose it was.
  void endUpdate(const Work& work, size_t index, AppliedUpdate update, ByteBudget::Lease room);
  /// What a block's update takes in the log.
  uint64_t bytesToLog(const Work& work, size_t index) const;

  using Gradients = std::shared_ptr<const std::vector<StagedGradient>>;  // kept until the storage is done
  static Gradients gradientsOf(const Work& work, size_t shard);
  /// Makes the gradients of rows one, a row shard in each turn of the event loop.
  kj::Promise<void> mergeRowsOf(WorkPtr work) const;

  const std::shared_ptr<const Aggregator> aggregator_;
  const RoundWeights weights_;
  const double lateRate_;
  const Clip clip_;
  const std::vector<Shard*> shards_;
  const std::vector<RowShard*> rowShards_;
  const std::vector<TensorPieces> tensors_;  // where the aggregator goes by tensors; else empty
  std::vector<ParameterBlock*> blocks_;
  const Lanes lanes_;
};

}  // namespace psd
