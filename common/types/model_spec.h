#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status/status.h"

namespace psd {

/// Element type of a tensor as it is stored by the daemon.
enum class DType : uint8_t { f32 };

std::string_view dtypeName(DType dtype);
Result<DType> parseDType(std::string_view name);

/// One dense parameter tensor. Immutable value type once built.
struct TensorSpec {
  std::string name;
  DType dtype = DType::f32;
  std::vector<uint64_t> shape;  ///< row-major; an empty shape is a scalar

  /// Product of the shape, in elements.
  uint64_t elementCount() const;
  /// For people: "fc1.weight f32[128,9216]".
  std::string toString() const;
  bool operator==(const TensorSpec&) const = default;
};

/// The ordered list of tensors that a daemon holds and its trainers train.
struct ModelSpec {
  std::string name;  ///< for people; not part of the signature
  std::vector<TensorSpec> tensors;

  /// FNV-1a (64 bit) over the ordered names, dtypes and shapes. Two models may share a daemon if and
  /// only if their signatures agree.
  uint64_t signature() const;
  /// Sum of the element counts, without layout padding.
  uint64_t parameterCount() const;
};

/// Checks what arrives from a config or a peer: at least one tensor, names of visible ASCII of at most
/// `kTensorNameBytesMax`, none repeated, no zero dimension, at most `kModelElementsMax` elements in all. The
/// error names the tensor.
Status validateModel(const ModelSpec& model);
inline constexpr size_t kTensorNameBytesMax = 1024;
inline constexpr uint64_t kModelElementsMax = 1ull << 40;

/// One line that names the first tensor in which two models differ, and how; empty when they agree.
std::string describeDifference(const ModelSpec& mine, std::string_view mineLabel, const ModelSpec& theirs,
                               std::string_view theirsLabel);

}  // namespace psd
