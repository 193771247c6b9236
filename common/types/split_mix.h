#pragma once

#include <cstdint>

namespace psd {

/// SplitMix64 (Steele, Lea, Flood 2014): number n, from 1, of the sequence with seed `seed` is splitMix(seed
/// + (n − 1) × kSplitMixStep). The sequence is the same on every machine and library, which the standard
/// distributions do not guarantee.
inline constexpr uint64_t kSplitMixStep = 0x9e3779b97f4a7c15;
constexpr uint64_t splitMix(uint64_t state) {
  state += kSplitMixStep;
  state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9;
  state = (state ^ (state >> 27)) * 0x94d049bb133111eb;
  return state ^ (state >> 31);
}

}  // namespace psd
