#pragma once

// Plain C++ and no third-party header: .cu files include this.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/status/status.h"
#include "server/store/backend.h"

namespace psd {

/// Where the shards of one allocation lie: their weights end to end in one run, their optimizer slots in a
/// second, shard by shard. Everything begins at multiples of kLayoutGrainElements. A value type.
struct ArenaPlan {
  std::vector<uint64_t> begins;  ///< first weight of each shard
  uint64_t elements = 0;         ///< weights in all, gaps included
  /// First value of each slot of each shard, in the run of the slots.
  std::vector<std::vector<uint64_t>> slotBegins;
  uint64_t slotElements = 0;  ///< in all, gaps included
};

/// Lays the shards out. ErrorCode::overloaded, naming `device` and the bytes, when they take more than
/// `bytesMax`.
Result<ArenaPlan> planArena(std::span<const ShardRequest> shards, std::string_view device, uint64_t bytesMax);

/// The error of planArena(), also for a device that refuses the memory after all.
Error notEnoughMemory(std::string_view device, uint64_t bytes, std::string_view reason);

}  // namespace psd
