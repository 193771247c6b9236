#include "common/plan/shard_plan.h"

#include <algorithm>
#include <queue>
#include <string>

#include "common/types/model_layout.h"

namespace psd {
namespace {

uint64_t grainsOf(uint64_t elements) { return (elements + kLayoutGrainElements - 1) / kLayoutGrainElements; }

/// Adds `count` shards that cover the run, each ending at the grain nearest to its fair share.
void cut(const GroupRun& run, uint64_t count, std::vector<ShardRange>& shards) {
  const uint64_t runBegin = shards.empty() ? 0 : shards.back().begin + shards.back().count;
  const uint64_t grains = grainsOf(run.count);
  uint64_t begin = 0;
  for (uint64_t i = 0; i < count; i++) {
    // Quotient and remainder are multiplied separately, so that the product cannot overflow.
    const uint64_t endGrain = grains / count * (i + 1) + grains % count * (i + 1) / count;
    const uint64_t end = std::min(run.count, endGrain * kLayoutGrainElements);
    const ShardId id{static_cast<uint32_t>(shards.size())};
    shards.push_back({id, runBegin + begin, end - begin, run.group, run.dtype});
    begin = end;
  }
}

/// The number of shards of each run: one, and the rest one by one to the run with the largest shards.
std::vector<uint64_t> distributeShards(std::span<const GroupRun> runs, uint32_t shardCount) {
  struct Claim {
    uint64_t grains, shards;
    size_t run;
    uint64_t largest() const { return (grains - 1) / shards + 1; }  // shard, in grains
    bool operator<(const Claim& other) const {
      return largest() != other.largest() ? largest() < other.largest() : run > other.run;
    }
  };
  std::vector<uint64_t> shares(runs.size(), 1);
  std::priority_queue<Claim> claims;
  for (size_t i = 0; i < runs.size(); i++) claims.push({grainsOf(runs[i].count), 1, i});
  for (uint64_t left = shardCount > runs.size() ? shardCount - runs.size() : 0; left > 0 && !claims.empty();
       left--) {
    Claim claim = claims.top();
    if (claim.largest() == 1) break;  // all shards of all runs are single grains
    claims.pop();
    shares[claim.run] = ++claim.shards;
    claims.push(claim);
  }
  return shares;
}

}  // namespace

ShardPlan ShardPlan::make(uint64_t totalElements, uint32_t shardCount) {
  const GroupRun whole{totalElements, 0};
  return make(std::span(&whole, 1), shardCount);
}

ShardPlan ShardPlan::make(std::span<const GroupRun> runs, uint32_t shardCount) {
  const std::vector<uint64_t> shares = distributeShards(runs, shardCount);
  ShardPlan plan;
  for (size_t i = 0; i < runs.size(); i++) cut(runs[i], shares[i], plan.shards);
  return plan;
}

uint32_t ShardPlan::countFor(uint64_t totalElements) {
  constexpr uint64_t kAtLeast = 4, kElementsMax = uint64_t{16} << 20;
  return static_cast<uint32_t>(std::max(kAtLeast, (totalElements + kElementsMax - 1) / kElementsMax));
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
              "shard " + std::to_string(i) + " of the plan does not start where the previous one ends"};
    }
    end += shard.count;
  }
  return {};
}

Status ShardPlan::readDtypes(const ModelSpec& model) {
  const ModelLayout layout(model);
  for (ShardRange& shard : shards) {
    const size_t first = layout.tensorAt(shard.begin), last = layout.tensorAt(shard.begin + shard.count - 1);
    shard.dtype = model.tensors[first].dtype;
    for (size_t i = first + 1; i <= last; i++) {
      if (model.tensors[i].dtype == shard.dtype) continue;
      return {ErrorCode::protocolMismatch,
              "shard " + std::to_string(shard.id.value) + " has tensors of several dtypes"};
    }
  }
  return {};
}

std::vector<ShardRange> planRowShards(uint32_t count) {
  std::vector<ShardRange> ranges;
  for (uint64_t i = 0; i < count; i++) {
    const uint64_t begin = kRowHashUnits * i / count, end = kRowHashUnits * (i + 1) / count;
    ranges.push_back({ShardId{static_cast<uint32_t>(i)}, begin, end - begin});
  }
  return ranges;
}

}  // namespace psd
