#pragma once

#include <algorithm>
#include <cstdint>

#include "server/store/rows/row_layout.h"

namespace psd {

/// Rule for automatic eviction of rows of a table. A value type.
struct EvictRule {
  enum class By {
    never,
    age,          ///< rows that none of the last `updates` updates changed
    leastRecent,  ///< the least recently updated rows, when new rows need their space
    norm,         ///< rows whose values have a norm less than `below`
  };
  By by = By::never;
  uint64_t updates = 0;  ///< age: see there; norm: the number of updates per scan of the table
  double below = 0;

  /// Number of updates of a row shard per scan of its part of the table; 0: no scans.
  uint64_t pass() const {
    constexpr uint64_t kSharesOfAge = 8, kPassMax = 65'536;
    if (by == By::norm) return updates;
    return by == By::age ? std::clamp<uint64_t>(updates / kSharesOfAge, 1, kPassMax) : 0;
  }
  bool operator==(const EvictRule&) const = default;
};

/// Rule for the creation of missing rows by pushes. A value type.
struct AdmitRule {
  static constexpr uint64_t kCounters = uint64_t{4} << 20;

  uint32_t pushes = 1;            ///< a row's `pushes`-th update creates it
  uint64_t counters = kCounters;  ///< bytes of the filter that counts updates of missing rows
  double probability = 1;         ///< probability that an update creates a row

  bool counts() const { return pushes > 1; }
  bool operator==(const AdmitRule&) const = default;
};

/// Limit, eviction and admission rules of a table. A value type.
struct RowRules {
  uint64_t rowsMax = UINT64_MAX;  ///< at most kNoRow for a table's part in a row shard
  EvictRule evict;
  AdmitRule admit;
  bool operator==(const RowRules&) const = default;
};

}  // namespace psd
