#include <algorithm>
#include <functional>

#include "common/plan/shard_plan.h"
#include "common/types/model_layout.h"
#include "test/support/catch.h"
#include "test/support/random.h"

namespace psd::plan_test {
namespace {

constexpr uint64_t kGrain = kLayoutGrainElements;

/// The plan covers the whole and no shard is more than a grain larger than another (the last may end off the
/// grain).
void requireFair(const ShardPlan& plan, uint64_t total) {
  PSD_REQUIRE_OK(plan.validate());
  REQUIRE(plan.totalElements() == total);
  uint64_t least = UINT64_MAX, most = 0;
  for (const ShardRange& shard : plan.shards) {
    const uint64_t grains = (shard.count - 1) / kGrain + 1;
    least = std::min(least, grains);
    most = std::max(most, grains);
  }
  REQUIRE(most - least <= 1);
}

TEST_CASE("a plan cuts at the grain, in order") {
  const ShardPlan plan = ShardPlan::make(160, 3);
  const std::vector<ShardRange> expected = {{ShardId{0}, 0, 48}, {ShardId{1}, 48, 48}, {ShardId{2}, 96, 64}};
  CHECK(plan.shards == expected);
}

TEST_CASE("any total and shard count give a plan that covers and balances") {
  for (uint64_t seed = 1; seed <= 300; seed++) {
    testing::Random random(seed);
    const uint64_t total = random.between(1, uint64_t{1} << random.between(0, 40));
    const auto shards = static_cast<uint32_t>(random.between(1, 300));
    INFO("seed " << seed << ": " << total << " elements, " << shards << " shards");
    const ShardPlan plan = ShardPlan::make(total, shards);
    REQUIRE(plan.shards.size() == std::min<uint64_t>(shards, (total + kGrain - 1) / kGrain));
    requireFair(plan, total);
  }
}

TEST_CASE("a small model gets fewer shards than asked for") {
  CHECK(ShardPlan::make(1, 8).shards == std::vector<ShardRange>{{ShardId{0}, 0, 1}});
  CHECK(ShardPlan::make(16, 8).shards.size() == 1);
  CHECK(ShardPlan::make(17, 8).shards.size() == 2);
  CHECK(ShardPlan::make(17, 8).shards[1] == ShardRange{ShardId{1}, 16, 1});
}

TEST_CASE("a plan's shards get the dtypes of a model, of which each has one") {
  const ModelSpec model{
      "",
      {{"a", DType::f32, {20}}, {"b", DType::f32, {4}}, {"c", DType::bf16, {40}}, {"d", DType::bf16, {8}}}};
  const GroupRun runs[] = {{48, 0}, {64, 0}};
  ShardPlan plan = ShardPlan::make(runs, 3);
  CHECK(plan.readDtypes(model).ok());
  std::vector<DType> dtypes;
  for (const ShardRange& shard : plan.shards) dtypes.push_back(shard.dtype);
  CHECK(dtypes == std::vector{DType::f32, DType::bf16, DType::bf16});
  ShardPlan crossing = ShardPlan::make(112, 1);
  const Status refused = crossing.readDtypes(model);
  CHECK(refused.message() == "shard 0 has tensors of several dtypes");
}

TEST_CASE("a request for zero shards yields one shard") { CHECK(ShardPlan::make(100, 0).shards.size() == 1); }

TEST_CASE("without a shard count a large model gets more shards, each of at most 64 MiB") {
  constexpr uint64_t kMost = uint64_t{16} << 20;
  CHECK(ShardPlan::countFor(1) == 4);
  CHECK(ShardPlan::countFor(4 * kMost) == 4);
  CHECK(ShardPlan::countFor(4 * kMost + 1) == 5);
  CHECK(ShardPlan::countFor(1'000'000'000) == 60);
}

TEST_CASE("huge totals do not overflow") {
  for (uint64_t total : {uint64_t{1} << 62, (uint64_t{1} << 63) - 3, uint64_t{1} << 40}) {
    for (uint32_t shards : {1u, 3u, 7u, 65'535u}) {
      INFO(total << " elements, " << shards << " shards");
      const ShardPlan plan = ShardPlan::make(total, shards);
      REQUIRE(plan.shards.size() == shards);
      requireFair(plan, total);
    }
  }
}

TEST_CASE("runs of several groups are cut separately, the larger ones more often") {
  const GroupRun runs[] = {{160, 1}, {16, 0}, {320, 1}};
  CHECK(ShardPlan::make(runs, 4).shards == std::vector<ShardRange>{{ShardId{0}, 0, 160, 1},
                                                                   {ShardId{1}, 160, 16, 0},
                                                                   {ShardId{2}, 176, 160, 1},
                                                                   {ShardId{3}, 336, 160, 1}});
  CHECK(ShardPlan::make(runs, 1).shards.size() == 3);      // a shard belongs to one group
  CHECK(ShardPlan::make(runs, 1000).shards.size() == 31);  // a grain each
}

TEST_CASE("any runs give a plan that covers them, keeps them separate and balances") {
  for (uint64_t seed = 1; seed <= 300; seed++) {
    testing::Random random(seed);
    std::vector<GroupRun> runs(random.between(1, 12));
    uint64_t total = 0;
    for (size_t i = 0; i < runs.size(); i++) {
      runs[i] = {kGrain * random.between(1, uint64_t{1} << random.between(0, 20)), static_cast<uint32_t>(i)};
      total += runs[i].count;
    }
    const auto shards = static_cast<uint32_t>(random.between(1, 100));
    INFO("seed " << seed << ": " << total << " elements in " << runs.size() << " runs, " << shards
                 << " shards");
    const ShardPlan plan = ShardPlan::make(runs, shards);
    PSD_REQUIRE_OK(plan.validate());
    REQUIRE(plan.totalElements() == total);
    REQUIRE(plan.shards.size() ==
            std::max<uint64_t>(runs.size(), std::min<uint64_t>(shards, total / kGrain)));
    std::vector<uint64_t> covered(runs.size()), cuts(runs.size());
    uint64_t largest = 0;
    for (const ShardRange& shard : plan.shards) {
      covered[shard.group] += shard.count;
      cuts[shard.group]++;
      largest = std::max(largest, shard.count);
    }
    for (size_t i = 0; i < runs.size(); i++) {
      REQUIRE(covered[i] == runs[i].count);
      // With one shard less in a run that has several, its largest shard would equal the overall maximum.
      if (cuts[i] > 1) REQUIRE((runs[i].count / kGrain - 1) / (cuts[i] - 1) + 1 >= largest / kGrain);
    }
  }
}

TEST_CASE("an inconsistent plan is rejected") {
  auto refusal = [](const std::function<void(std::vector<ShardRange>&)>& spoil) {
    ShardPlan plan = ShardPlan::make(160, 3);
    spoil(plan.shards);
    Status status = plan.validate();
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().code == ErrorCode::invalidArgument);
    return status.message();
  };
  const std::string second = "shard 1 of the plan does not start where the previous one ends";

  CHECK(refusal([](auto& shards) { shards[1].begin += 16; }) == second);  // a gap
  CHECK(refusal([](auto& shards) { shards[1].begin -= 16; }) == second);  // an overlap
  CHECK(refusal([](auto& shards) { shards[0].count = 40, shards[1].begin = 40; }) ==
        second);                                                                      // off the grain
  CHECK(refusal([](auto& shards) { shards[1].count = 0; }) == second);                // empty
  CHECK(refusal([](auto& shards) { shards[1].id = ShardId{2}; }) == second);          // misnumbered
  CHECK(refusal([](auto& shards) { shards[1].count = UINT64_MAX - 16; }) == second);  // past 2^64
  CHECK(refusal([](auto& shards) { shards[0].begin = 16; }) ==
        "shard 0 of the plan does not start where the previous one ends");
}

}  // namespace
}  // namespace psd::plan_test
