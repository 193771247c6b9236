#include "server/store/arena_plan.h"

#include <string>

#include "common/types/model_layout.h"

namespace psd {

Result<ArenaPlan> planArena(std::span<const ShardRequest> shards, std::string_view device,
                            uint64_t bytesMax) {
  ArenaPlan plan;
  bool overflow = false;
  const auto take = [&overflow](uint64_t& end, uint64_t count) {
    const uint64_t begin = end;
    overflow |= __builtin_add_overflow(end, count, &end);
    overflow |= __builtin_add_overflow(end, -count % kLayoutGrainElements, &end);
    return begin;
  };
  for (const ShardRequest& shard : shards) {
    plan.begins.push_back(take(plan.elements, shard.elements));
    auto& slots = plan.slotBegins.emplace_back();
    while (slots.size() < shard.optimizer.slots().size())
      slots.push_back(take(plan.slotElements, shard.elements));
  }
  uint64_t bytes = 0;
  overflow |= __builtin_add_overflow(plan.elements, plan.slotElements, &bytes);
  overflow |= __builtin_mul_overflow(bytes, sizeof(float), &bytes);
  if (overflow) bytes = UINT64_MAX;
  if (bytes > bytesMax) {
    return notEnoughMemory(device, bytes, "it has " + std::to_string(bytesMax) + " bytes");
  }
  return plan;
}

Error notEnoughMemory(std::string_view device, uint64_t bytes, std::string_view reason) {
  const std::string size = bytes == UINT64_MAX ? "more than 2^64" : std::to_string(bytes);
  return {ErrorCode::overloaded, std::string(device) + ": cannot hold " + size +
                                     " bytes of parameters and optimizer state: " + std::string(reason)};
}

}  // namespace psd
