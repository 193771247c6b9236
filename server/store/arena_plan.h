#pragma once

// Plain C++ and no third-party header: .cu files include this.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/status/status.h"

namespace psd {

/// Where the shards of one allocation lie, end to end, each begun at a multiple of
/// kLayoutGrainElements. Weights and every optimizer slot are laid out alike. A value type.
struct ArenaPlan {
  std::vector<uint64_t> begins;  ///< first element of each shard
  uint64_t elements = 0;         ///< in all, gaps included
};

/// ErrorCode::overloaded, naming `device` and the bytes, when weights and `slotCount` values of
/// optimizer state per weight need more than the device's `bytesMax`.
Result<ArenaPlan> planArena(std::span<const uint64_t> elementCounts, uint64_t slotCount,
                            std::string_view device, uint64_t bytesMax);

/// What planArena answers, and a device that refuses the memory after all.
Error notEnoughMemory(std::string_view device, uint64_t bytes, std::string_view reason);

}  // namespace psd
