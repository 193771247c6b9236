#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/status/status.h"
#include "trainer/task/batch.h"

namespace psd {

/// A tensor in host memory, as it travels between trainers and an executor. A value type.
struct NamedTensor {
  std::string name;
  ElementType type = ElementType::f32;
  std::vector<uint64_t> shape;   ///< row-major; of inputs and outputs the first extent is the samples
  std::vector<std::byte> bytes;  ///< the elements, without gaps; aligned for any element type

  uint64_t elementCount() const { return bytes.size() / elementBytes(type); }
  /// The elements of a tensor whose type is that of T, which is the caller's to know.
  template <class T>
  std::span<const T> values() const {
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  template <class T>
  std::span<T> values() {
    return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  /// For people: "scores f32[32,10]".
  std::string toString() const;
};

/// Bytes of a tensor's elements; nothing where there is no such size.
Result<uint64_t> tensorBytes(ElementType type, std::span<const uint64_t> shape);

uint64_t totalBytes(std::span<const NamedTensor> tensors);

/// Whether these are `columns`, each once and no others, of the same samples, at least one. The error names
/// the tensor (invalidArgument).
Status checkInputs(std::span<const NamedTensor> inputs, std::span<const ColumnSpec> columns);

/// The columns of a batch, with those names, as tensors.
std::vector<NamedTensor> tensorsOf(const Batch& batch, std::span<const ColumnSpec> columns);

/// A batch of such tensors, which are as checkInputs() wants them, without rows.
Batch batchOf(std::span<const NamedTensor> inputs);

/// Whether floating-point values are all finite; whole numbers are.
bool allFinite(const NamedTensor& tensor);

}  // namespace psd
