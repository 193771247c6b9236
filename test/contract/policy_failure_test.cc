// Device failures under policies that apply whole shards: the gradient is rejected, and later ones count as
// if it had never existed.

#include "test/contract/policy_trainer.h"
#include "test/support/failing_backend.h"

namespace psd::policy_failure_test {
namespace {

using testing::FailingBackend;
using testing::PolicyTrainer;
using testing::ServedStore;
using testing::subtracting;
using testing::TestLoop;

constexpr uint32_t kShards = 3;

DEVICE_TEST("an update that failed is rejected, takes no number and delays none after it") {
  for (const PolicyEntry& entry : kPolicyList) {
    if (!entry.traits.recordsUpdates && !entry.traits.rounds) continue;
    for (int shard = 0; shard < static_cast<int>(kShards); shard++) {
      INFO(entry.type << ", shard " << shard);
      auto backend = std::make_shared<FailingBackend>(device.make());
      ServedStore served(backend, entry, subtracting(), 1000, kShards, "{}", true);
      const std::vector<float> gradient(served.store->layout().totalElements(), -1.f);
      TestLoop loop;
      PolicyTrainer trainer(served, loop);
      PSD_REQUIRE_OK(trainer.pushAll(Version{0}, gradient));
      backend->failAfter(shard);
      // Independent shards are rejected separately; this is the last one's answer.
      static_cast<void>(trainer.pushAll(Version{1}, gradient));
      for (uint64_t step = 2; step < 5; step++) {
        std::vector<uint64_t> before;
        for (size_t s = 0; s < kShards; s++) before.push_back(served.shard(s).version().value);
        const auto newest = *std::max_element(before.begin(), before.end());
        const auto answer = trainer.pushAll(Version{newest}, gradient);
        PSD_REQUIRE_OK(answer);
        CHECK(answer->applied());
        for (size_t s = 0; s < kShards; s++) {
          CHECK(served.shard(s).version().value == before[s] + 1);
          CHECK(served.shard(s).beginExclusiveUpdate() == before[s] + 2);
        }
      }
    }
  }
}

TEST_CASE("a late push while a round is applied stays late if the round fails") {
  for (const PolicyEntry& entry : kPolicyList) {
    if (!entry.traits.rounds || entry.type == "allreduce") continue;  // whose rounds have one contribution
    INFO(entry.type);
    auto backend = std::make_shared<FailingBackend>(makeCpuBackend());
    ServedStore served(backend, entry, subtracting(), 1600, 1, R"({"backup_trainers": 1})");
    const std::vector<float> gradient(1600, -1.f);
    TestLoop loop;
    PolicyTrainer quick(served, loop, Rank{0}), slow(served, loop, Rank{1});
    std::optional<ShardLock::Guard> guard = loop.wait(served.shard(0).lock().acquire());
    testing::Update closing(served, quick.lanes(), 0, Version{0}, gradient, quick.ref(), Step{1});
    auto closed = closing.send({0, 1600});
    CHECK_FALSE(loop.resolved(closed));
    testing::Update late(served, slow.lanes(), 0, Version{0}, gradient, slow.ref(), Step{1});
    CHECK(loop.wait(late.send({0, 160}))->outcome == PushOutcome::received);
    backend->failAfter(0);
    guard.reset();
    CHECK_FALSE(loop.wait(kj::mv(closed)).ok());
    // The round is open again, but its next contribution is incomplete.
    CHECK(loop.wait(late.send({160, 1440}))->outcome == PushOutcome::late);
  }
}

}  // namespace
}  // namespace psd::policy_failure_test
