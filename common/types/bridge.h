#pragma once

#include <cstdint>
#include <string>

#include "common/types/ids.h"

namespace psd {

/// The rank by which a daemon knows its bridge: the program that has the machine's parameters averaged with
/// those of other machines. No trainer has it, as world sizes are far below. A bridge pushes differences of
/// parameters, which are subtracted as they are.
inline constexpr Rank kBridgeRank{UINT32_MAX};

/// For people: "rank 3", "the bridge".
inline std::string rankText(Rank rank) {
  return rank == kBridgeRank ? "the bridge" : "rank " + std::to_string(rank.value);
}

}  // namespace psd
