#include "trainer/loop/gradient_weight.h"

#include <algorithm>

namespace psd {

void scaleGradient(std::span<float> gradient, const ElementRange& final,
                   const std::vector<ElementRange>& where, float weight) {
  for (const ElementRange& range : where) {
    const uint64_t begin = std::max(final.begin, range.begin);
    const uint64_t end = std::min(final.begin + final.count, range.begin + range.count);
    for (uint64_t i = begin; i < end; i++) gradient[i] *= weight;
  }
}

}  // namespace psd
