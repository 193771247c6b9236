#pragma once

#include <cstdint>
#include <string>

#include "common/types/ids.h"

namespace psd {

/// The rank of the bridge, the program that averages this machine's parameters with those of other machines.
/// World sizes are far below it, so no trainer has it. A bridge pushes differences of parameters, which are
/// subtracted unscaled.
inline constexpr Rank kBridgeRank{UINT32_MAX};

/// Human-readable: "rank 3", "the bridge".
inline std::string rankText(Rank rank) {
  return rank == kBridgeRank ? "the bridge" : "rank " + std::to_string(rank.value);
}

}  // namespace psd
