#pragma once

#include <cstdint>

#include "common/types/ids.h"

namespace psd {

/// The last push of one trainer that became part of a shard, and what it was answered: enough to recognise it
/// when it comes again. A value type.
struct AppliedPush {
  Rank rank;
  uint64_t incarnation = 0;  ///< which life of that rank
  Step step;
  Version version;         ///< that it made
  uint64_t staleness = 0;  ///< that it had
  bool operator==(const AppliedPush&) const = default;
};

}  // namespace psd
