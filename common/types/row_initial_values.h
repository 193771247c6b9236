#pragma once

// Plain C++ without third-party headers: .cu files include this. Every including file is compiled without
// fused multiply-adds, which round once instead of twice.

#include <cstdint>

#include "common/types/host_device.h"
#include "common/types/split_mix.h"

namespace psd {

// The building blocks of RowInitial::fill(), for host and device.

/// The random key of a row: SplitMix64 of seed and id, in two halves.
struct RowKey {
  uint32_t low, high;
};

PSD_HOST_DEVICE RowKey rowKey(uint64_t seed, uint64_t id) {
  constexpr uint64_t kOdd = 0xd6e8feb86659fd93;  // different from rowHash()'s multiplier
  const uint64_t bits = splitMix(seed ^ id * kOdd);
  return {static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32)};
}

/// The 32 random bits with number `index` in a row. Uses 32-bit arithmetic throughout, so that a vector holds
/// twice as many.
PSD_HOST_DEVICE uint32_t rowBits(RowKey key, uint32_t index) {
  uint32_t bits = key.low + index * 0x9e3779b9;
  bits = (bits ^ bits >> 16) * 0x7feb352d;
  bits ^= key.high;
  bits = (bits ^ bits >> 15) * 0x846ca68b;
  return bits ^ bits >> 16;
}

/// The `step` of uniformRowValue().
PSD_HOST_DEVICE float uniformRowStep(float scale) { return scale * 0x1p-23f; }

/// Value `index`: a 24-bit number, which a float holds exactly, mapped to −1 … 1, times `scale`.
PSD_HOST_DEVICE float uniformRowValue(RowKey key, uint32_t index, float step, float scale) {
  return static_cast<float>(static_cast<int32_t>(rowBits(key, index) >> 8)) * step - scale;
}

/// The `step` of normalRowValue(), whose sum has the standard deviation √(8 · (2^32 − 1) / 12).
PSD_HOST_DEVICE float normalRowStep(float scale) { return scale * (1 / 53509.9f); }

/// Value `index`: the sum of the eight halves of four draws, minus its mean.
PSD_HOST_DEVICE float normalRowValue(RowKey key, uint32_t index, float step) {
  constexpr int32_t kMean = 8 * 65535 / 2;
  constexpr uint32_t kRowMost = 1 << 16;  // limit on the values of a row; the draws of each part start at a
                                          // multiple of it
  int32_t sum = -kMean;
  for (uint32_t part = 0; part < 4; ++part) {
    const uint32_t bits = rowBits(key, index + part * kRowMost);
    sum += static_cast<int32_t>((bits & 0xffff) + (bits >> 16));
  }
  return static_cast<float>(sum) * step;
}

}  // namespace psd
