#pragma once

#include <cstdint>
#include <vector>

#include "common/config/object_reader.h"
#include "common/status/status.h"
#include "server/config/parameter_groups.h"

namespace psd {

/// The largest number of trainers or connections that a configuration may name.
inline constexpr uint64_t kTrainersMax = 1'000'000;

/// How many trainers there are.
struct WorldSize {
  uint32_t min = 1;  ///< so many come, at least
  uint32_t max = 1;  ///< ranks go from 0 to below it
};

/// Reads `world_size`: a number, or the bounds of one that changes while training runs. Problems go to the
/// reader.
WorldSize readWorldSize(ObjectReader& in);

/// ErrorCode::invalidArgument when the rounds of a group's policy would never begin with so many trainers.
Status checkTrainersSuffice(const std::vector<GroupConfig>& groups, uint32_t trainers);

}  // namespace psd
