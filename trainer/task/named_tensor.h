#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/status/status.h"
#include "trainer/task/batch.h"

namespace psd {

/// A tensor in host memory, as exchanged between trainers and an executor. A value type.
struct NamedTensor {
  std::string name;
  ElementType type = ElementType::f32;
  std::vector<uint64_t> shape;   ///< row-major; the first extent of inputs and outputs is the samples
  std::vector<std::byte> bytes;  ///< the elements, without gaps; aligned for any element type

  uint64_t elementCount() const { return bytes.size() / elementBytes(type); }
  /// The elements. The caller ensures that the tensor's type is T.
  template <class T>
  std::span<const T> values() const {
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  template <class T>
  std::span<T> values() {
    return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  /// Human-readable: "scores f32[32,10]".
  std::string toString() const;
};

/// Size of a tensor's elements in bytes; an error if it overflows.
Result<uint64_t> tensorBytes(ElementType type, std::span<const uint64_t> shape);

uint64_t totalBytes(std::span<const NamedTensor> tensors);

/// Checks that the inputs are exactly `columns`, with the same number of samples, at least one. The error
/// (invalidArgument) names the tensor.
Status checkInputs(std::span<const NamedTensor> inputs, std::span<const ColumnSpec> columns);

/// The columns of a batch named in `columns`, as tensors.
std::vector<NamedTensor> tensorsOf(const Batch& batch, std::span<const ColumnSpec> columns);

/// A batch, without rows, of inputs that passed checkInputs().
Batch batchOf(std::span<const NamedTensor> inputs);

/// Whether all floating-point values are finite; true for whole numbers.
bool allFinite(const NamedTensor& tensor);

}  // namespace psd
