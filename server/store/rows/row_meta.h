#pragma once

#include <algorithm>
#include <cstdint>

namespace psd {

/// Metadata of a row in one word: the shard's version at the row's last update (40 bits) and the number of
/// its updates (24 bits). Both saturate at their maximum. A value type; checkpoints store `word`.
struct RowMeta {
  static constexpr uint32_t kCountBits = 24;
  static constexpr uint64_t kCountMax = (uint64_t{1} << kCountBits) - 1;
  static constexpr uint64_t kVersionMax = (uint64_t{1} << (64 - kCountBits)) - 1;

  uint64_t word = 0;

  static constexpr RowMeta of(uint64_t version, uint64_t count) {
    return {std::min(version, kVersionMax) << kCountBits | std::min(count, kCountMax)};
  }
  constexpr uint64_t version() const { return word >> kCountBits; }
  constexpr uint64_t count() const { return word & kCountMax; }
  /// The metadata after one more update, which created `version` of the shard.
  constexpr RowMeta updated(uint64_t version) const { return of(version, count() + 1); }

  bool operator==(const RowMeta&) const = default;
};

}  // namespace psd
