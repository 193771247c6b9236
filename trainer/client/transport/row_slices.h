#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/types/ids.h"
#include "common/types/row_ids.h"
#include "trainer/client/api/row_batch.h"

namespace psd {

/// A row shard as the daemon describes it. A value type.
struct RowShardTerms {
  ShardId id;
  uint64_t hashFirst = 0, hashLast = 0;  ///< range of the hashes of its rows' ids
  std::vector<uint32_t> tables;          ///< indices into ModelSpec::tables, ascending
  bool operator==(const RowShardTerms&) const = default;
};

/// Rows of one row shard, as a call carries them.
struct RowSlice {
  /// Contiguous rows of a table's ids.
  struct Piece {
    uint32_t table = 0;
    uint32_t begin = 0, count = 0;  ///< rows
  };
  ShardId shard;
  uint64_t first = 0;   ///< index of its first row among those of the shard
  uint64_t count = 0;   ///< rows
  uint64_t total = 0;   ///< rows of the shard in the batch
  uint64_t values = 0;  ///< float32
  std::vector<Piece> pieces;
};

/// The slice's floats in the batch, where `valuesOf(table)` are those of a table, if they are contiguous;
/// else empty.
template <class ValuesOf>
auto neighbours(const RowSlice& slice, const RowBatch& batch, const ValuesOf& valuesOf) {
  using Values = decltype(valuesOf(0));
  Values all;
  for (const RowSlice::Piece& piece : slice.pieces) {
    const size_t dim = batch.dim(piece.table);
    const Values values = valuesOf(piece.table).subspan(piece.begin * dim, piece.count * dim);
    if (!all.empty() && all.data() + all.size() != values.data()) return Values();
    all = Values(all.empty() ? values.data() : all.data(), all.size() + values.size());
  }
  return all;
}

/// to = the slice's gradients, row after row.
void collectGradients(const RowSlice& slice, const RowBatch& batch, std::span<float> to);
/// Copies values, row after row, to their places in the batch.
void placeValues(std::span<const float> values, const RowSlice& slice, RowBatch& batch);

/// The rows of a batch by shard, in slices of at most `floatsMax` float32 values including the cost of their
/// ids, but of at least one row. A shard without rows gets one slice without rows. A pure function.
std::vector<RowSlice> cutRows(const RowBatch& batch, const std::vector<RowShardTerms>& shards,
                              uint64_t floatsMax);

/// The slices of a gradient without rows.
std::vector<RowSlice> noRows(const std::vector<RowShardTerms>& shards);

/// The tables of the slice's ids, as runs.
std::vector<RowRun> runsOf(const RowSlice& slice);
/// Calls `take` with the ids of each piece of the slice in order.
template <class Take>
void visitIds(const RowSlice& slice, const RowBatch& batch, const Take& take) {
  for (const RowSlice::Piece& piece : slice.pieces) {
    take(batch.ids(piece.table).subspan(piece.begin, piece.count));
  }
}

}  // namespace psd
