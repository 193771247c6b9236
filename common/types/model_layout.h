#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/types/model_spec.h"

namespace psd {

/// Every tensor begins at a multiple of this many elements (64 bytes), so that vector loads are aligned on
/// both sides and any slice cut at this grain can be referenced in place in a message.
inline constexpr uint64_t kLayoutGrainElements = 16;

/// Where one tensor lies in the flat arena, in elements.
struct TensorPlace {
  uint64_t begin = 0;
  uint64_t count = 0;
};

/// The flat order of a model's elements, the same on daemon and trainer: tensors end to end, each
/// padded with zeros to `kLayoutGrainElements`. A pure function of the model. Immutable.
class ModelLayout {
 public:
  explicit ModelLayout(const ModelSpec& model);

  /// Elements in the arena, padding included; a multiple of `kLayoutGrainElements`.
  uint64_t totalElements() const { return totalElements_; }
  const std::vector<TensorPlace>& places() const { return places_; }

  /// Index of the tensor that holds an arena element (padding belongs to the preceding tensor).
  size_t tensorAt(uint64_t element) const;

  /// Where an element lies, in bytes, in an arena whose elements have their tensors' dtypes, padding
  /// included: of totalElements(), its size. A multiple of 32 at the begin of a tensor.
  uint64_t byteAt(uint64_t element) const;

 private:
  std::vector<TensorPlace> places_;
  std::vector<uint64_t> bytes_;  // of the begin of each tensor
  std::vector<uint64_t> elementBytes_;
  uint64_t totalElements_ = 0;
};

}  // namespace psd
