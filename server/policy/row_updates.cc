#include "server/policy/row_updates.h"

#include <utility>

#include "server/store/rows/row_blocks.h"

namespace psd {

Result<std::optional<WholeRows>> gatherRows(StagingPool& pool, const RowShard& shard, ShardPush& push,
                                            uint64_t first, const RowGradient& slice, RowRetention taken) {
  if (const Codec* const codec = slice.values.codec()) {
    PSD_ASSIGN_OR_RETURN(const auto room, acquireForGradient(pool, slice.values.size()));
    const std::span<float> values(room.get(), slice.values.size());
    decodeRows(*codec, rowBlocks(shard, slice.rows.runs), slice.values.bytes(), values);
    return gatherRows(pool, shard, push, first, {slice.rows, values}, RowRetention::copied);
  }
  const uint64_t rows = slice.rows.ids.size();
  const bool alone = rows == push.total;
  const bool stays = !slice.values.inSharedMemory();
  if (alone && (rows == 0 || (stays && taken == RowRetention::inPlace))) {
    push.taken += rows;
    return std::optional(
        WholeRows{push.trainer.session, sourceOf(push), {slice.rows, slice.values.values(), nullptr}});
  }
  PSD_RETURN_IF_ERROR(push.gatheredRows.put(pool, shard.id(), first, slice));
  push.taken += rows;
  if (push.taken < push.total) return std::optional<WholeRows>();
  auto staged = push.gatheredRows.take(pool);
  if (!staged.ok()) {  // so that the trainer can repeat the slice
    push.gatheredRows.drop(first);
    push.taken -= rows;
    return staged.error();
  }
  return std::optional(WholeRows{push.trainer.session, sourceOf(push), *std::move(staged)});
}

Result<RowsAnswer> readRows(const RowShard& shard, const RowIds& rows, std::span<float> out) {
  // Reads the version before the values: concurrent updates make the values newer than the version, never
  // older.
  const Version version = shard.version();
  const uint64_t known = shard.gather(rows, out);
  PSD_RETURN_IF_ERROR(shard.state());
  return RowsAnswer{version, known};
}

kj::Promise<Result<RowsAnswer>> readRowsUnderLock(RowShard& shard, const RowIds& rows, std::span<float> out) {
  return shard.lock().acquire().then(
      [&shard, rows, out](ShardLock::Guard) -> Result<RowsAnswer> { return readRows(shard, rows, out); });
}

}  // namespace psd
