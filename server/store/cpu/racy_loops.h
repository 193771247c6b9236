#pragma once

#include <cstdint>
#include <span>

#include "server/optimizer/optimizer.h"
#include "server/store/gradient_change.h"

namespace psd {

/// One optimizer step over w[offset … offset + n) with gradient g[0 … n). `slots` holds one pointer per
/// optimizer slot, each an array parallel to w. May race with itself and racyCopy(); see racy_loops.cc.
void racyApply(const Optimizer& optimizer, const UpdateScalars& update, uint64_t offset, uint64_t n, float* w,
               const float* g, std::span<float* const> slots);

/// One optimizer step over only the weights w[places[0 … n)], with gradient g[0 … n), for an optimizer
/// without slots; does nothing for others. May race like racyApply().
void racyApplyAt(const Optimizer& optimizer, const UpdateScalars& update, uint64_t n, const uint32_t* places,
                 const float* g, float* w);

/// Applies `change` to g[0 … n), for the weights w[0 … n). `pulled` and `meanSquare` are arrays parallel to
/// w; `pulled` is null without compensation, `meanSquare` unless it is adaptive. May race with racyApply()
/// over w.
void racyChange(const ElementChange& change, uint64_t n, const float* w, const float* pulled,
                float* meanSquare, float* g);

/// to[0 … n) = from[0 … n). Other threads may access either side.
void racyCopy(uint64_t n, const float* from, float* to);

}  // namespace psd
