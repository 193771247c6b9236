#pragma once

#include <cstdint>
#include <string>

#include "common/types/ids.h"

namespace psd {

/// The rank under which the pushes of a bridge, the program that averages this machine's parameters with
/// those of other machines, are recorded. World sizes are far below it, so no trainer has it. Sessions say
/// what they are (Candidate::bridges, TrainerRef::bridges).
inline constexpr Rank kBridgeRank{UINT32_MAX};

/// Whether pushes recorded under this rank are a bridge's: differences of parameters, subtracted unscaled.
inline bool isBridge(Rank recorded) { return recorded == kBridgeRank; }

/// Human-readable: "rank 3", "the bridge".
inline std::string rankText(Rank recorded) {
  return isBridge(recorded) ? "the bridge" : "rank " + std::to_string(recorded.value);
}

}  // namespace psd
