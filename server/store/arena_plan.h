#pragma once

// Plain C++ and no third-party header: .cu files include this.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/status/status.h"
#include "server/store/backend.h"

namespace psd {

/// Where the shards of one allocation lie: their weights end to end, and in a second run their optimizer
/// slots, those of one shard one after the other. All begin at multiples of kLayoutGrainElements. A value
/// type.
struct ArenaPlan {
  std::vector<uint64_t> begins;  ///< first weight of each shard
  uint64_t elements = 0;         ///< weights in all, gaps included
  /// First value of each slot of each shard, in the run of the slots.
  std::vector<std::vector<uint64_t>> slotBegins;
  uint64_t slotElements = 0;  ///< in all, gaps included
};

/// ErrorCode::overloaded, naming `device` and the bytes, when that takes more than the device's `bytesMax`.
Result<ArenaPlan> planArena(std::span<const ShardRequest> shards, std::string_view device, uint64_t bytesMax);

/// What planArena answers, and a device that refuses the memory after all.
Error notEnoughMemory(std::string_view device, uint64_t bytes, std::string_view reason);

}  // namespace psd
