#pragma once

// Plain C++ and no third-party header: .cu files include this.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/status/status.h"
#include "server/store/backend.h"

namespace psd {

/// Layout of the shards of one allocation: one run holds their weights, a second their optimizer slots, both
/// in shard order. Every shard and slot starts at a multiple of kLayoutGrainElements. A value type.
struct ArenaPlan {
  std::vector<uint64_t> begins;  ///< first weight of each shard
  uint64_t elements = 0;         ///< total weights, padding included
  /// Offset of each slot of each shard in the run of slots.
  std::vector<std::vector<uint64_t>> slotBegins;
  uint64_t slotElements = 0;  ///< total, padding included
};

/// Computes the layout. ErrorCode::overloaded, naming `device` and the bytes, if it exceeds `bytesMax`.
Result<ArenaPlan> planArena(std::span<const ShardRequest> shards, std::string_view device, uint64_t bytesMax);

/// The error of planArena(); also used when the device fails to allocate the memory.
Error notEnoughMemory(std::string_view device, uint64_t bytes, std::string_view reason);

}  // namespace psd
