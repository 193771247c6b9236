#include "trainer/loop/non_finite.h"

#include <algorithm>
#include <cmath>

#include "common/types/finite.h"
#include "common/types/model_layout.h"

namespace psd {

std::string describeNonFinite(const ModelSpec& model, std::span<const float> flat) {
  const ModelLayout layout(model);
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    const TensorPlace& place = layout.places()[i];
    const auto values = flat.subspan(place.begin, place.count);
    const auto bad = std::find_if(values.begin(), values.end(), [](float v) { return !std::isfinite(v); });
    if (bad == values.end()) continue;
    return nonFiniteElement(model.tensors[i].name, *bad, static_cast<uint64_t>(bad - values.begin()),
                            place.count);
  }
  return {};
}

}  // namespace psd
