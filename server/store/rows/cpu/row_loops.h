#pragma once

#include <cstdint>
#include <span>

#include "server/optimizer/optimizer.h"
#include "server/store/rows/row_arena.h"
#include "server/store/rows/row_layout.h"
#include "server/store/rows/row_update.h"

namespace psd {

// Loops over rows of an arena, which may race with each other element by element; see row_loops.cc.

/// out[i · dim …] = values of rows[i]; kNoRow is skipped. Prefetches the rows `next`.
void racyGatherRows(const RowArena::Places& places, uint32_t dim, std::span<const uint32_t> rows, float* out,
                    std::span<const uint32_t> next);

/// One optimizer step per row, in order, with gradients[i · dim …]; kNoRow is skipped. Prefetches the rows
/// `next`.
void racyApplyRows(const Optimizer& optimizer, const RowUpdate& update, const RowLayout& layout,
                   const RowArena::Places& places, std::span<const uint32_t> rows, const float* gradients,
                   std::span<const uint32_t> next);

/// to[0 … n) = from[0 … n). Other threads may access either side.
void racyCopyRow(uint64_t n, const float* from, float* to);

}  // namespace psd
