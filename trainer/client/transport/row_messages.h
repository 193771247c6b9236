#pragma once

// Common parts of calls that name rows, independent of how the values travel.

#include <algorithm>
#include <cstdint>
#include <vector>

#include <capnp/message.h>

#include "common/wire/convert.h"
#include "trainer/client/transport/row_slices.h"
#include "trainer/client/transport/slices.h"

namespace psd {

/// Size, in words, of a single-segment message with a call about the slice and `valueBytes` of values.
inline capnp::MessageSize rowCallSize(const RowSlice& slice, uint64_t valueBytes) {
  constexpr uint64_t kCallWords = 40;  // in addition to runs, ids and values
  return {kCallWords + slice.count + slice.pieces.size() + (valueBytes + 7) / 8, 0};
}

/// The slice as describe() needs it for a push.
inline Slice headOf(const RowSlice& slice) {
  return {.shard = slice.shard, .offset = slice.first, .count = slice.count, .total = slice.total};
}

/// Writes the rows that a call is about; `batch` may be null if there are none.
template <class Request>
void nameRows(Request& request, const RowSlice& slice, const RowBatch* batch) {
  const std::vector<RowRun> runs = runsOf(slice);
  wire::writeRuns(runs, request.initRuns(static_cast<kj::uint>(runs.size())));
  auto ids = request.initIds(static_cast<kj::uint>(slice.count * sizeof(uint64_t)));
  auto* at = reinterpret_cast<uint64_t*>(ids.begin());
  if (batch) {
    visitIds(slice, *batch, [&](std::span<const uint64_t> piece) { at = std::ranges::copy(piece, at).out; });
  }
}

}  // namespace psd
