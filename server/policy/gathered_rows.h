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

/// One row shard's gradient, put together from its slices. Empty until put(). Used by one thread at a time.
class GatheredRows {
 public:
  static constexpr size_t kSlicesMax = 4096;  ///< of one part

  bool empty() const { return pieces_.empty(); }
  /// Copies a slice of the gradient, whose first row has the number `first` in it. ErrorCode::overloaded,
  /// naming the limit, when the pool has no room or the slices are more than kSlicesMax; ErrorCode::nonFinite
  /// where what was copied from memory that the trainer shares holds NaN or infinity, whatever it held when
  /// it was checked there.
  Status put(StagingPool& pool, ShardId shard, uint64_t first, const RowGradient& slice);
  /// Forgets the slice that begins with row `first`.
  void drop(uint64_t first) { pieces_.erase(first); }
  /// All slices in the order of their rows; takes them out. ErrorCode::overloaded as in put(), with all
  /// still there.
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

  std::map<uint64_t, Piece> pieces_;  // by the number of the first row
};

}  // namespace psd
