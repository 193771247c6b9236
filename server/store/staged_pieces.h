#pragma once

// Plain C++ and no third-party header: .cu files include this.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/status/status.h"
#include "server/store/staging_pool.h"

namespace psd {

/// How an operation is split into pieces that pass through staging buffers.
struct StagedPieces {
  static constexpr uint64_t kBuffersMax = 16;

  uint64_t elements = 0;          ///< total
  uint64_t most = 0;              ///< maximum per piece
  uint64_t floatsPerElement = 1;  ///< buffer floats per element
};

/// Calls `visit(at, count, buffer)` for each piece in order. All buffers are acquired before the first visit
/// and kept in `staged`, so a rejected operation has no effect (ErrorCode::overloaded, if the pool has no
/// buffer). There may be fewer buffers than pieces: kBuffersMax, or as many as the pool has. The buffers are
/// then reused in turn: before each turn but the first, `wait()` must return only once the visits so far no
/// longer need their buffers.
template <class Visit, class Wait>
Status forEachStaged(StagingPool& pool, const StagedPieces& pieces,
                     std::vector<std::shared_ptr<float>>& staged, const Visit& visit, const Wait& wait) {
  if (pieces.elements == 0) return {};
  const uint64_t count = (pieces.elements + pieces.most - 1) / pieces.most;
  for (uint64_t i = 0; i < std::min(count, StagedPieces::kBuffersMax); ++i) {
    auto buffer = pool.acquire(std::min(pieces.elements, pieces.most) * pieces.floatsPerElement);
    if (!buffer.ok() && i == 0) return buffer.error();
    if (!buffer.ok()) break;
    staged.push_back(*std::move(buffer));
  }
  for (uint64_t piece = 0; piece < count; ++piece) {
    const uint64_t at = piece * pieces.most;
    const uint64_t slot = piece % staged.size();
    if (piece > 0 && slot == 0) PSD_RETURN_IF_ERROR(wait());
    PSD_RETURN_IF_ERROR(visit(at, std::min(pieces.most, pieces.elements - at), staged[slot].get()));
  }
  return {};
}

}  // namespace psd
