#pragma once

#include <algorithm>
#include <cstdint>

#include "server/store/rows/row_layout.h"

namespace psd {

/// Which rows of a table are taken out without being asked for. A value type.
struct EvictRule {
  enum class By {
    never,
    age,          ///< those that none of the last `updates` updates had
    leastRecent,  ///< those whose last update is longest ago, where there is no room for new ones
    norm,         ///< those whose values have a norm below `below`
  };
  By by = By::never;
  uint64_t updates = 0;  ///< age: see there; norm: a table is looked through once in so many updates
  double below = 0;

  /// In how many updates of a row shard its part of the table is looked through once; 0: never.
  uint64_t pass() const {
    constexpr uint64_t kSharesOfAge = 8, kPassMax = 65'536;
    if (by == By::norm) return updates;
    return by == By::age ? std::clamp<uint64_t>(updates / kSharesOfAge, 1, kPassMax) : 0;
  }
  bool operator==(const EvictRule&) const = default;
};

/// Which rows that are not there come into being by a push. A value type.
struct AdmitRule {
  static constexpr uint64_t kCounters = uint64_t{4} << 20;

  uint32_t pushes = 1;            ///< the update that is the row's so many-th makes it
  uint64_t counters = kCounters;  ///< bytes in which updates of rows that are not there are counted
  double probability = 1;         ///< with which an update makes a row

  bool counts() const { return pushes > 1; }
  bool operator==(const AdmitRule&) const = default;
};

/// How many rows a table may have, which come into being and which go. A value type.
struct RowRules {
  uint64_t rowsMax = UINT64_MAX;  ///< of a table's part in a row shard kNoRow at most
  EvictRule evict;
  AdmitRule admit;
  bool operator==(const RowRules&) const = default;
};

}  // namespace psd
