#include "trainer/client/transport/row_slices.h"

#include <algorithm>
#include <cstring>

#include "common/plan/shard_plan.h"
#include "common/types/row_hash.h"

namespace psd {
namespace {

/// Whether the batch has its rows in the order of these shards.
bool sameShards(const RowBatch& batch, const std::vector<RowShardTerms>& shards,
                const std::vector<size_t>& holders) {
  const std::vector<ShardRange> planned = planRowShards(batch.shards());
  return std::ranges::equal(
      holders, planned, {}, [&](size_t i) { return shards[i].hashFirst; },
      [](const ShardRange& range) { return range.begin << 32; });
}

/// Assigns row by row to the shard that holds it.
void divideByHash(uint32_t table, std::span<const uint64_t> ids, const std::vector<RowShardTerms>& shards,
                  const std::vector<size_t>& holders, std::vector<RowSlice>& whole) {
  for (uint32_t row = 0; row < ids.size(); row++) {
    const auto holder = std::ranges::lower_bound(holders, rowHash(ids[row]), {},
                                                 [&](size_t i) { return shards[i].hashLast; });
    RowSlice& of = whole[*holder];
    RowSlice::Piece* last = of.pieces.empty() ? nullptr : &of.pieces.back();
    if (last && last->table == table && last->begin + last->count == row) {
      last->count++;
    } else {
      of.pieces.push_back({table, row, 1});
    }
    of.count++;
  }
}

/// The pieces of each shard's rows, not yet cut.
std::vector<RowSlice> divide(const RowBatch& batch, const std::vector<RowShardTerms>& shards) {
  std::vector<RowSlice> whole = noRows(shards);
  for (uint32_t table = 0; table < batch.tableCount(); table++) {
    std::vector<size_t> holders;  // of rows of the table, by their hashes
    for (size_t i = 0; i < shards.size(); i++) {
      if (std::ranges::binary_search(shards[i].tables, table)) holders.push_back(i);
    }
    if (holders.empty()) continue;
    if (!sameShards(batch, shards, holders)) {
      divideByHash(table, batch.ids(table), shards, holders, whole);
      continue;
    }
    const auto rows = static_cast<uint32_t>(batch.rowCount(table));
    for (uint32_t shard = 0; shard < holders.size(); shard++) {
      const uint32_t begin = batch.shardBegin(table, shard);
      const uint32_t end = shard + 1 < holders.size() ? batch.shardBegin(table, shard + 1) : rows;
      if (begin == end) continue;
      RowSlice& of = whole[holders[shard]];
      of.pieces.push_back({table, begin, end - begin});
      of.count += end - begin;
    }
  }
  return whole;
}

/// The floats of a piece among those of its table.
template <class Values>
Values floatsOf(Values values, const RowSlice::Piece& piece, uint32_t dim) {
  return values.subspan(size_t{piece.begin} * dim, size_t{piece.count} * dim);
}

}  // namespace

std::vector<RowRun> runsOf(const RowSlice& slice) {
  std::vector<RowRun> runs;
  for (const RowSlice::Piece& piece : slice.pieces) {
    if (!runs.empty() && runs.back().table == piece.table) {
      runs.back().count += piece.count;
    } else {
      runs.push_back({piece.table, piece.count});
    }
  }
  return runs;
}

void collectGradients(const RowSlice& slice, const RowBatch& batch, std::span<float> to) {
  for (const RowSlice::Piece& piece : slice.pieces) {
    const auto from = floatsOf(batch.gradients(piece.table), piece, batch.dim(piece.table));
    std::memcpy(to.data(), from.data(), from.size_bytes());
    to = to.subspan(from.size());
  }
}

void placeValues(std::span<const float> values, const RowSlice& slice, RowBatch& batch) {
  for (const RowSlice::Piece& piece : slice.pieces) {
    const auto to = floatsOf(batch.rows(piece.table), piece, batch.dim(piece.table));
    std::memcpy(to.data(), values.data(), to.size_bytes());
    values = values.subspan(to.size());
  }
}

std::vector<RowSlice> noRows(const std::vector<RowShardTerms>& shards) {
  std::vector<RowSlice> slices;
  for (const RowShardTerms& shard : shards) slices.push_back({.shard = shard.id});
  return slices;
}

std::vector<RowSlice> cutRows(const RowBatch& batch, const std::vector<RowShardTerms>& shards,
                              uint64_t floatsMax) {
  std::vector<RowSlice> slices;
  uint64_t taken = 0;  // of floatsMax
  for (const RowSlice& whole : divide(batch, shards)) {
    RowSlice slice{.shard = whole.shard, .total = whole.count};
    const auto finish = [&] {
      slices.push_back(slice);
      slice = {.shard = whole.shard, .first = slice.first + slice.count, .total = whole.count};
      taken = 0;
    };
    for (RowSlice::Piece piece : whole.pieces) {
      const uint64_t dim = batch.dim(piece.table);
      while (piece.count > 0) {
        taken += kRowRunFloats;
        const uint64_t fitting = taken < floatsMax ? (floatsMax - taken) / (dim + kRowIdFloats) : 0;
        if (fitting == 0 && slice.count > 0) {
          finish();
          continue;
        }
        const auto count = static_cast<uint32_t>(std::clamp<uint64_t>(fitting, 1, piece.count));
        slice.pieces.push_back({piece.table, piece.begin, count});
        slice.count += count;
        slice.values += count * dim;
        taken += count * (dim + kRowIdFloats);
        piece.begin += count;
        piece.count -= count;
      }
    }
    if (slice.count > 0 || whole.count == 0) finish();
  }
  return slices;
}

}  // namespace psd
