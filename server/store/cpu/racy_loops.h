#pragma once

#include <cstdint>
#include <span>

#include "server/optimizer/optimizer.h"
#include "server/store/gradient_change.h"

namespace psd {

/// One optimizer step over w[offset … offset + n) with gradient g[0 … n). `slots` holds a pointer
/// per slot of the optimizer, which runs beside w. May race with itself and racyCopy; see
/// racy_loops.cc.
void racyApply(const Optimizer& optimizer, const UpdateScalars& update, uint64_t offset, uint64_t n, float* w,
               const float* g, std::span<float* const> slots);

/// One optimizer step over the weights w[places[0 … n)) alone with gradient g[0 … n), of an optimizer without
/// slots; does nothing for any other. May race as racyApply() may.
void racyApplyAt(const Optimizer& optimizer, const UpdateScalars& update, uint64_t n, const uint32_t* places,
                 const float* g, float* w);

/// g[0 … n) = what `change` makes of it for the weights w[0 … n). `pulled` and `meanSquare` run beside them;
/// null without compensation, or where it is not adaptive. May race with racyApply over w.
void racyChange(const ElementChange& change, uint64_t n, const float* w, const float* pulled,
                float* meanSquare, float* g);

/// to[0 … n) = from[0 … n). Either side may be in use by other threads.
void racyCopy(uint64_t n, const float* from, float* to);

}  // namespace psd
