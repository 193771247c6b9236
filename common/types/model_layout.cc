#include "common/types/model_layout.h"

#include <algorithm>

namespace psd {

ModelLayout::ModelLayout(const ModelSpec& model) {
  places_.reserve(model.tensors.size());
  uint64_t bytes = 0;
  for (const TensorSpec& tensor : model.tensors) {
    uint64_t count = tensor.elementCount();
    places_.push_back({totalElements_, count});
    bytes_.push_back(bytes);
    elementBytes_.push_back(dtypeBytes(tensor.dtype));
    const uint64_t begin = totalElements_;
    totalElements_ += (count + kLayoutGrainElements - 1) / kLayoutGrainElements * kLayoutGrainElements;
    bytes += (totalElements_ - begin) * elementBytes_.back();
  }
}

size_t ModelLayout::tensorAt(uint64_t element) const {
  auto after = std::upper_bound(places_.begin(), places_.end(), element,
                                [](uint64_t e, const TensorPlace& place) { return e < place.begin; });
  return after == places_.begin() ? 0 : static_cast<size_t>(after - places_.begin()) - 1;
}

uint64_t ModelLayout::byteAt(uint64_t element) const {
  if (places_.empty()) return 0;
  const size_t tensor = tensorAt(element);
  return bytes_[tensor] + (element - places_[tensor].begin) * elementBytes_[tensor];
}

}  // namespace psd
