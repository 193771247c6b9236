#include "common/types/model_layout.h"

#include <algorithm>

namespace psd {

ModelLayout::ModelLayout(const ModelSpec& model) {
  places_.reserve(model.tensors.size());
  for (const TensorSpec& tensor : model.tensors) {
    uint64_t count = tensor.elementCount();
    places_.push_back({totalElements_, count});
    totalElements_ += (count + kLayoutGrainElements - 1) / kLayoutGrainElements * kLayoutGrainElements;
  }
}

size_t ModelLayout::tensorAt(uint64_t element) const {
  auto after = std::upper_bound(places_.begin(), places_.end(), element,
                                [](uint64_t e, const TensorPlace& place) { return e < place.begin; });
  return after == places_.begin() ? 0 : static_cast<size_t>(after - places_.begin()) - 1;
}

}  // namespace psd
