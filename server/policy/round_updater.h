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
  uint32_t localSteps = 0;  ///< local steps taken; 0: it is the gradient of a single step
  uint64_t leadRound = 0;   ///< RoundMoment::number that the trainer gives the round; 0: none
  SharedAverage shares;     ///< other trainers whose gradients are in the average
  Step step;
  std::optional<uint64_t> round;  ///< the round it was computed for; nullopt: before round 0
  uint64_t late = 0;              ///< number of rounds that closed before it arrived
  /// By block of the parameter group; null: the optimizer's own. Alike in the parts of a round that are not
  /// late.
  std::vector<std::shared_ptr<const Hyperparameters>> hyperparameters;
  /// By index of the parameter group's shards and row shards; empty: not arrived yet, or not needed.
  std::vector<StagedGradient> shards;
  std::vector<StagedRows> rows;
};

/// Applies the gradients of a closed round to all blocks of a parameter group as one update: asks the
/// aggregator how to combine them, creates new rows, and applies the combination block by block, each under
/// its lock. If the rows do not fit into memory, nothing of the round is applied. Used by one caller at a
/// time, on any event loop.
class RoundUpdater {
 public:
  using Round = std::shared_ptr<const std::vector<std::shared_ptr<RoundPart>>>;  ///< by rank; at least one
  struct Outcome {
    Result<uint64_t> logged;  ///< LSN of the round's last update; 0 without a log
    size_t applied = 0;       ///< number of blocks that have the update
  };

  RoundUpdater(const PolicyScope& scope, const RoundOptions& options);

  /// The parameter group's blocks ordered by id: shards, then row shards.
  const std::vector<ParameterBlock*>& blocks() const { return blocks_; }
  size_t shardCount() const { return shards_.size(); }
  /// `first`: by block, its version when round 0 opened (see Sync::first_).
  kj::Promise<Outcome> apply(Round round, std::vector<int64_t> first);

 private:
  /// The state of a round while it is applied.
  struct Work {
    Round round;
    std::vector<int64_t> first;
    std::vector<double> weights;  // by part of the round
    Combination combination;
    std::vector<Combination> ofShards;   // by shard, if Aggregator::byTensor(); else empty
    std::vector<StagedRows> rows;        // combined gradient by row shard
    std::vector<PreparedRows> prepared;  // by row shard, as far as createRows() got
  };
  using WorkPtr = std::shared_ptr<Work>;
  /// The part of a tensor that lies in one shard.
  struct Piece {
    size_t shard;           // index in shards_
    uint64_t begin, count;  // elements of the shard
    uint64_t padding;       // elements after them that belong to no tensor
  };
  struct TensorPieces {
    std::string name;
    std::vector<Piece> pieces;  // in element order
  };

  static std::vector<TensorPieces> piecesOf(const PolicyScope& scope, const std::vector<Shard*>& shards);
  /// How the gradients are combined in a shard.
  static const Combination& combinationIn(const Work& work, size_t shard) {
    return work.ofShards.empty() ? work.combination : work.ofShards[shard];
  }

  kj::Promise<Result<SquaredDistances>> addDistances(WorkPtr work, SquaredDistances sum, size_t next);
  /// Sets how the gradients are combined in the tensors from `next` on.
  kj::Promise<Status> weighTensors(WorkPtr work, size_t next);
  /// Adds the inner products of a tensor's contributions over its pieces from `next` on.
  kj::Promise<Result<InnerProducts>> addProducts(WorkPtr work, const TensorPieces& tensor, InnerProducts sums,
                                                 size_t next);
  /// Sets how the gradients are combined, and merges the row gradients.
  kj::Promise<Status> combine(WorkPtr work);
  /// Sets clipping: the value limit, and the scale from the norm over all blocks of the parameter group.
  kj::Promise<Status> clip(WorkPtr work);
  /// In the row shards from `next` on, evicts the rows that are due and creates new ones. Creates all new
  /// rows of the round, or none.
  kj::Promise<Status> createRows(WorkPtr work, size_t next);
  /// Removes the rows created for work->prepared, last row shard first.
  kj::Promise<void> removeCreatedRows(WorkPtr work);
  /// ‖g‖² of the combined gradient over the shards from `next` on, plus `sum`.
  kj::Promise<Result<double>> addSquares(WorkPtr work, double sum, size_t next);
  /// Applies the round to the blocks from `next` on, sequentially.
  kj::Promise<Outcome> applyBlocks(WorkPtr work, size_t next);
  /// Applies the round to one block, with the block's lock held.
  kj::Promise<Status> applyBlock(WorkPtr work, size_t index, ByteBudget::Lease space);
  kj::Promise<Status> update(WorkPtr work, size_t index, const UpdateScalars& scalars);
  /// Applies the round to one shard and logs it. Applies the same gradient that is logged, so that replay is
  /// bit-exact.
  kj::Promise<Status> updateLogged(WorkPtr work, size_t index, const UpdateScalars& scalars,
                                   ByteBudget::Lease space);
  Status updateRowsOf(Work& work, size_t index, const UpdateScalars& scalars, ByteBudget::Lease space);
  /// Ends a block's update, with the round's trainers as its sources.
  void endUpdate(const Work& work, size_t index, AppliedUpdate update, ByteBudget::Lease space);
  /// Bytes that a block's update takes in the log.
  uint64_t bytesToLog(const Work& work, size_t index) const;

  using Gradients = std::shared_ptr<const std::vector<StagedGradient>>;  // alive until the storage is done
  static Gradients gradientsOf(const Work& work, size_t shard);
  /// Merges the row gradients, one row shard per turn of the event loop.
  kj::Promise<void> mergeRowsOf(WorkPtr work) const;

  const std::shared_ptr<const Aggregator> aggregator_;
  const RoundWeights weights_;
  const double lateRate_;
  const Clip clip_;
  const std::vector<Shard*> shards_;
  const std::vector<RowShard*> rowShards_;
  const std::vector<TensorPieces> tensors_;  // if Aggregator::byTensor(); else empty
  std::vector<ParameterBlock*> blocks_;
  const Lanes lanes_;
};

}  // namespace psd
