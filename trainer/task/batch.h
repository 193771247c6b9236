#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "trainer/task/batch_rows.h"

namespace psd {

/// Element type of a tensor.
enum class ElementType : uint8_t { f32, f64, i32, i64, u8 };

std::string_view elementTypeName(ElementType type);
size_t elementBytes(ElementType type);

/// A named tensor per sample, provided by a data set or taken by a model. A value type.
struct ColumnSpec {
  /// An extent for which a model accepts any length.
  static constexpr uint64_t kAny = 0;

  std::string name;
  ElementType type = ElementType::f32;
  std::vector<uint64_t> shape;  ///< of one sample, row-major; empty: a scalar
  uint64_t bound = 0;           ///< whole numbers are from 0 to bound − 1; 0: not limited

  /// Human-readable: "image f32[1,28,28]", "label i64 below 10", "tokens i64[any] below 10000".
  std::string toString() const;
  /// Human-readable type, shape and bound, without the name: "i64 below 10".
  std::string typeText() const;
  /// Whether a model that takes this column accepts `column` of a data set.
  bool takes(const ColumnSpec& column) const;
  bool operator==(const ColumnSpec&) const = default;
};

/// "image f32[1,28,28], label i64 below 10"
std::string describeColumns(std::span<const ColumnSpec> columns);

/// One column of the samples of a batch. The batch owns its memory.
struct BatchTensor {
  ColumnSpec column;             ///< of one sample
  std::vector<std::byte> bytes;  ///< [samples, …column.shape]; aligned for any element type
};

/// Samples of a data set in host memory, as named tensors whose first dimension is the sample, and the rows
/// of embedding tables that a model needs for them. Reused from step to step, so that its memory is allocated
/// once. Owned by one thread.
class Batch {
 public:
  /// Resizes the batch to `size` samples of `columns`, whose values the caller then writes, and clears the
  /// rows.
  void reshape(const std::vector<ColumnSpec>& columns, size_t size);

  size_t size() const { return size_; }
  /// Bytes of the files from which the samples were read; 0: not known.
  uint64_t sourceBytes() const { return sourceBytes_; }
  void setSourceBytes(uint64_t bytes) { sourceBytes_ = bytes; }
  const std::vector<BatchTensor>& tensors() const { return tensors_; }
  /// The memory of a column's values, by the column's index.
  std::span<std::byte> bytesOf(size_t column) { return tensors_[column].bytes; }
  /// See Model::lookUp(); filled in by the code that pulls.
  BatchRows& rows() { return rows_; }
  const BatchRows& rows() const { return rows_; }

  /// The values of a column, row-major. Empty if there is no such column or it has another type.
  template <class T>
  std::span<T> values(std::string_view column) {
    const BatchTensor* tensor = find(column, typeOf<T>());
    if (tensor == nullptr) return {};
    return {reinterpret_cast<T*>(const_cast<std::byte*>(tensor->bytes.data())),
            tensor->bytes.size() / sizeof(T)};
  }
  template <class T>
  std::span<const T> values(std::string_view column) const {
    return const_cast<Batch*>(this)->values<T>(column);
  }

 private:
  template <class T>
  static constexpr ElementType typeOf() {
    if (std::is_same_v<T, float>) return ElementType::f32;
    if (std::is_same_v<T, double>) return ElementType::f64;
    if (std::is_same_v<T, int32_t>) return ElementType::i32;
    if (std::is_same_v<T, int64_t>) return ElementType::i64;
    static_assert(std::is_same_v<T, float> || std::is_same_v<T, double> || std::is_same_v<T, int32_t> ||
                  std::is_same_v<T, int64_t> || std::is_same_v<T, uint8_t>);
    return ElementType::u8;
  }
  const BatchTensor* find(std::string_view column, ElementType type) const;

  size_t size_ = 0;
  uint64_t sourceBytes_ = 0;
  std::vector<BatchTensor> tensors_;
  BatchRows rows_;
};

}  // namespace psd
