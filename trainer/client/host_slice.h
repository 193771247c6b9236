#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace psd {

/// Host memory for the values of a slice that are on their way from or to a device. Owned by one thread.
class HostSlice {
 public:
  explicit HostSlice(uint64_t count) : values_(new float[count + kPadding]), count_(count) {}
  std::span<float> values() const { return {values_.get(), count_}; }

 private:
  static constexpr uint64_t kPadding = 2;  // messages are sent in whole words of 8 bytes

  const std::unique_ptr<float[]> values_;
  const uint64_t count_;
};

/// The values of a slice, wherever they are.
struct SliceValues {
  std::span<const float> values;
  std::shared_ptr<const void> owner;  ///< null: the caller's
};

}  // namespace psd
