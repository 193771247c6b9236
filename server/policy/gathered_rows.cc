#include "server/policy/gathered_rows.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/types/finite.h"

namespace psd {

Result<GatheredRows::Piece> GatheredRows::makePiece(StagingPool& pool, uint64_t rows, uint64_t values) {
  Piece piece;
  piece.rows = rows;
  piece.values = values;
  PSD_ASSIGN_OR_RETURN(std::shared_ptr<float> ids,
                       acquireForGradient(pool, rows * (sizeof(uint64_t) / sizeof(float))));
  piece.ids = {ids, reinterpret_cast<uint64_t*>(ids.get())};
  PSD_ASSIGN_OR_RETURN(piece.gradients, acquireForGradient(pool, values));
  return piece;
}

Status GatheredRows::put(StagingPool& pool, ShardId shard, uint64_t first, const RowGradient& slice) {
  if (pieces_.size() >= kSlicesMax && !pieces_.contains(first)) {
    return {ErrorCode::overloaded,
            fmt::format("rows of shard {}: a part may have at most {} slices", shard.value, kSlicesMax)};
  }
  PSD_ASSIGN_OR_RETURN(Piece piece, makePiece(pool, slice.rows.ids.size(), slice.values.size()));
  piece.runs.assign(slice.rows.runs.begin(), slice.rows.runs.end());
  std::ranges::copy(slice.rows.ids, piece.ids.get());
  const std::span<float> place(piece.gradients.get(), piece.values);
  slice.values.copyTo(0, place);
  if (slice.values.inSharedMemory() && !allFinite(place)) {
    return {ErrorCode::nonFinite,
            fmt::format("the slice at row {} of shard {} now holds NaN or infinity", first, shard.value)};
  }
  pieces_[first] = std::move(piece);
  return {};
}

Result<StagedRows> GatheredRows::take(StagingPool& pool) {
  if (pieces_.empty()) return StagedRows();
  if (pieces_.size() == 1) return staged(std::move(std::exchange(pieces_, {}).begin()->second));
  uint64_t rows = 0, values = 0;
  for (const auto& [first, piece] : pieces_) {
    rows += piece.rows;
    values += piece.values;
  }
  PSD_ASSIGN_OR_RETURN(Piece whole, makePiece(pool, rows, values));
  const auto pieces = std::exchange(pieces_, {});
  rows = values = 0;
  for (const auto& [first, piece] : pieces) {
    whole.runs.insert(whole.runs.end(), piece.runs.begin(), piece.runs.end());
    std::copy_n(piece.ids.get(), piece.rows, whole.ids.get() + rows);
    std::copy_n(piece.gradients.get(), piece.values, whole.gradients.get() + values);
    rows += piece.rows;
    values += piece.values;
  }
  return staged(std::move(whole));
}

StagedRows GatheredRows::staged(Piece piece) {
  auto kept = std::make_shared<const Piece>(std::move(piece));
  StagedRows whole{
      {kept->runs, {kept->ids.get(), kept->rows}}, {kept->gradients.get(), kept->values}, nullptr};
  whole.owner = std::move(kept);
  return whole;
}

}  // namespace psd
