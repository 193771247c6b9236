#pragma once

#include <algorithm>
#include <cstdint>

namespace psd {

/// What a table knows of a row beside its values, in one word: the shard's version at the row's last update
/// (40 bits) and how many updates it had (24 bits). Both stay at the largest number that they can hold. A
/// value type; checkpoints keep `word`.
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
  /// After one more update, which made `version` of the shard.
  constexpr RowMeta updated(uint64_t version) const { return of(version, count() + 1); }

  bool operator==(const RowMeta&) const = default;
};

}  // namespace psd
