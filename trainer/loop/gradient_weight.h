#pragma once

#include <span>
#include <vector>

#include "trainer/client/api/client.h"

namespace psd {

/// g ← weight · g for the elements of `final` that lie in `where` (sorted ranges).
void scaleGradient(std::span<float> gradient, const ElementRange& final,
                   const std::vector<ElementRange>& where, float weight);

}  // namespace psd
