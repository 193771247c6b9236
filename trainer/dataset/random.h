#pragma once

#include <cstdint>

namespace psd {

/// SplitMix64 (Steele, Lea, Flood 2014): the same numbers on every machine and library, which the
/// standard's distributions do not promise. Owned by one thread.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  /// A stream of its own for each pair: neighbouring seeds or streams are unrelated.
  Random(uint64_t seed, uint64_t stream) : state_(Random(seed).next() ^ Random(~stream).next()) {}

  uint64_t next() {
    uint64_t mixed = (state_ += 0x9e3779b97f4a7c15ull);
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ull;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebull;
    return mixed ^ (mixed >> 31);
  }

  /// Uniform in 0 … bound − 1; bound > 0. Multiply-shift: the bias is below bound / 2^32.
  uint32_t below(uint32_t bound) { return static_cast<uint32_t>(((next() >> 32) * bound) >> 32); }

 private:
  uint64_t state_;
};

}  // namespace psd
