#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "common/types/model_spec.h"

namespace psd {

/// The elements of a flat arena, or adjacent ones of it, in memory: all float32, or "native", which means
/// that each has the dtype of its tensor, at ModelLayout::byteAt(). A view, which does not own the memory.
/// `Float` is float or const float.
template <class Float>
class BasicArenaValues {
 public:
  using Byte = std::conditional_t<std::is_const_v<Float>, const std::byte, std::byte>;
  using Vector = std::conditional_t<std::is_const_v<Float>, const std::vector<float>, std::vector<float>>;

  BasicArenaValues() = default;
  /// Float32 values.
  BasicArenaValues(std::span<Float> floats)
      : data_(reinterpret_cast<Byte*>(floats.data())), size_(floats.size()) {}
  BasicArenaValues(Vector& floats) : BasicArenaValues(std::span<Float>(floats)) {}
  template <size_t N>
  BasicArenaValues(std::array<float, N>& floats) : BasicArenaValues(std::span<Float>(floats)) {}
  template <class Other>
  requires(std::is_const_v<Float> && !std::is_const_v<Other>) BasicArenaValues(std::span<Other> floats)
      : BasicArenaValues(std::span<Float>(floats)) {}
  template <class Other>
  requires(std::is_const_v<Float> && !std::is_const_v<Other>)
      BasicArenaValues(const BasicArenaValues<Other>& other)
      : data_(other.data()), size_(other.size()), native_(other.isNative()) {}

  static BasicArenaValues native(Byte* data, uint64_t size) {
    BasicArenaValues values;
    values.data_ = data;
    values.size_ = size;
    values.native_ = true;
    return values;
  }

  Byte* data() const { return data_; }
  /// In elements.
  uint64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  bool isNative() const { return native_; }
  /// The dtype in memory of elements of `dtype`.
  DType dtypeOf(DType dtype) const { return native_ ? dtype : DType::f32; }

  /// Elements whose memory has dtype float32.
  std::span<Float> floats() const { return {reinterpret_cast<Float*>(data_), size_}; }
  /// `count` elements from element `begin` on, which is at byte `nativeBegin` of a native arena.
  BasicArenaValues part(uint64_t begin, uint64_t count, uint64_t nativeBegin) const {
    BasicArenaValues values = *this;
    values.data_ = data_ == nullptr ? nullptr : data_ + (native_ ? nativeBegin : begin * sizeof(float));
    values.size_ = count;
    return values;
  }

 private:
  Byte* data_ = nullptr;
  uint64_t size_ = 0;
  bool native_ = false;
};

using ArenaValues = BasicArenaValues<float>;
using ConstArenaValues = BasicArenaValues<const float>;

}  // namespace psd
