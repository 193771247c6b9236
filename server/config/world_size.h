#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/config/config_reader.h"
#include "common/status/status.h"
#include "server/config/parameter_groups.h"

namespace psd {

/// The largest number of trainers or connections that a configuration may name.
inline constexpr uint64_t kTrainersMax = 1'000'000;

/// Bounds of the number of trainers. A value type.
struct WorldSize {
  uint32_t min = 1;
  uint32_t max = 1;  ///< ranks go from 0 to below it
};

/// Reads the key `world_size`: a number, or the bounds of one that changes during training. Nothing where it
/// is absent.
std::optional<WorldSize> readWorldSize(ConfigReader& in);

/// ErrorCode::invalidArgument when the rounds of a group's policy would never start with that many trainers.
Status checkTrainersSuffice(const std::vector<GroupConfig>& groups, uint32_t trainers);

}  // namespace psd
