#include "server/store/arena_plan.h"

#include <string>

#include "common/types/model_layout.h"

namespace psd {

Result<ArenaPlan> planArena(std::span<const uint64_t> elementCounts, uint64_t slotCount,
                            std::string_view device, uint64_t bytesMax) {
  ArenaPlan plan;
  bool overflow = false;
  for (const uint64_t count : elementCounts) {
    plan.begins.push_back(plan.elements);
    const uint64_t padding = -count % kLayoutGrainElements;
    overflow |= __builtin_add_overflow(plan.elements, count, &plan.elements);
    overflow |= __builtin_add_overflow(plan.elements, padding, &plan.elements);
  }
  uint64_t bytes = 0;
  overflow |= __builtin_mul_overflow(plan.elements, sizeof(float) * (1 + slotCount), &bytes);
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
