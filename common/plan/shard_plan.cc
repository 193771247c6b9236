#include "common/plan/shard_plan.h"

#include <algorithm>
#include <string>

#include "common/types/model_layout.h"

namespace psd {

ShardPlan ShardPlan::make(uint64_t totalElements, uint32_t shardCount) {
  // Cut in grains: shard i ends at the grain nearest to its fair share of the whole.
  uint64_t grains = (totalElements + kLayoutGrainElements - 1) / kLayoutGrainElements;
  uint64_t count = std::max<uint64_t>(1, std::min<uint64_t>(shardCount, grains));
  ShardPlan plan;
  uint64_t begin = 0;
  for (uint64_t i = 0; i < count; i++) {
    // grains/count and the remainder apart, so that the product cannot overflow.
    uint64_t endGrain = grains / count * (i + 1) + grains % count * (i + 1) / count;
    uint64_t end = std::min(totalElements, endGrain * kLayoutGrainElements);
    plan.shards.push_back({ShardId{static_cast<uint32_t>(i)}, begin, end - begin});
    begin = end;
  }
  return plan;
}

uint64_t ShardPlan::totalElements() const {
  return shards.empty() ? 0 : shards.back().begin + shards.back().count;
}

Status ShardPlan::validate() const {
  uint64_t end = 0;
  for (size_t i = 0; i < shards.size(); i++) {
    const ShardRange& shard = shards[i];
    if (shard.id.value != i || shard.begin != end || shard.count == 0 ||
        shard.begin % kLayoutGrainElements != 0 || shard.count > UINT64_MAX - end) {
      return {ErrorCode::invalidArgument,
              "shard " + std::to_string(i) + " of the plan does not follow on the one before it"};
    }
    end += shard.count;
  }
  if (shards.empty()) return {ErrorCode::invalidArgument, "the shard plan is empty"};
  return {};
}

}  // namespace psd
