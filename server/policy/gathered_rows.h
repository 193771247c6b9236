#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "server/store/rows/row_gradient.h"
#include "server/store/rows/row_shard.h"
#include "server/store/staging_pool.h"

namespace psd {

/// One row shard's gradient, assembled from its slices. Empty until put(). Used by one thread at a time.
class GatheredRows {
 public:
  static constexpr size_t kSlicesMax = 4096;  ///< per part

  bool empty() const { return pieces_.empty(); }
  /// Copies a slice of the gradient; `first`: the index of its first row in the part. ErrorCode::overloaded,
  /// naming the limit, if the pool has no space or there are more than kSlicesMax slices;
  /// ErrorCode::nonFinite if a slice copied from memory shared with the trainer contains NaN or infinity,
  /// even if it was finite when it was checked in place.
  Status put(StagingPool& pool, ShardId shard, uint64_t first, const RowGradient& slice);
  /// Discards the slice that starts at row `first`.
  void drop(uint64_t first) { pieces_.erase(first); }
  /// Removes and returns all slices in row order. ErrorCode::overloaded as in put(); the slices are then
  /// kept.
  Result<StagedRows> take(StagingPool& pool);

 private:
  struct Piece {
    std::vector<RowRun> runs;
    std::shared_ptr<uint64_t> ids;
    uint64_t rows = 0;
    std::shared_ptr<float> gradients;
    uint64_t values = 0;
  };
  static Result<Piece> makePiece(StagingPool& pool, uint64_t rows, uint64_t values);
  static StagedRows staged(Piece piece);

  std::map<uint64_t, Piece> pieces_;  // by the index of the first row
};

}  // namespace psd
