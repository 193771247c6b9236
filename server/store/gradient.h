#pragma once

// Plain C++ and no third-party header: .cu files include this.

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <span>

#include "common/codec/codec.h"

namespace psd {

/// The gradient of a slice as received: float32 values or a codec's bytes in host memory, or float32 values
/// in the memory of the shard's device. A view; does not own the memory. A value type.
class Gradient {
 public:
  template <class Values>
  requires std::convertible_to<const Values&, std::span<const float>> Gradient(const Values& values)
      : values_(values), size_(values_.size()) {}
  /// `bytes` must have passed codec.check() for `count` values.
  Gradient(const Codec& codec, Codec::Bytes bytes, uint64_t count)
      : codec_(&codec), bytes_(bytes), size_(count) {}

  /// Values in device memory, which the host cannot read unless the device is the CPU.
  static Gradient onDevice(std::span<const float> values) {
    Gradient gradient(values);
    gradient.onDevice_ = true;
    return gradient;
  }

  /// Values in memory that the trainer can still write to: two reads may differ.
  static Gradient inSharedMemory(std::span<const float> values) {
    Gradient gradient(values);
    gradient.shared_ = true;
    return gradient;
  }

  bool inSharedMemory() const { return shared_; }
  /// Whether values() are in the memory of the shard's device, where only its storage may read them.
  bool onDevice() const { return onDevice_; }
  /// Number of values.
  uint64_t size() const { return size_; }
  /// The codec of bytes(); null if the gradient is float32.
  const Codec* codec() const { return codec_; }
  std::span<const float> values() const { return values_; }
  std::span<const std::byte> bytes() const { return codec_ ? bytes_ : std::as_bytes(values_); }

  /// out = the values from `begin` on; not for values in device memory. With a codec, whole blocks as
  /// Codec::decode() requires.
  void copyTo(uint64_t begin, std::span<float> out) const {
    if (codec_) return codec_->decode(bytes_, size_, begin, out);
    std::copy_n(values_.begin() + static_cast<ptrdiff_t>(begin), out.size(), out.begin());
  }

 private:
  const Codec* codec_ = nullptr;
  std::span<const float> values_;
  Codec::Bytes bytes_;
  uint64_t size_;
  bool onDevice_ = false, shared_ = false;
};

}  // namespace psd
