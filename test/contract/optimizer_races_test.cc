// Weights that are a function of the optimizer's state remain so where steps race for them.

#include <atomic>
#include <memory>
#include <vector>

#include "server/store/derived_weights.h"
#include "test/support/any_optimizer.h"
#include "test/support/test_device.h"
#include "test/support/together.h"

namespace psd::optimizer_races_test {
namespace {

using testing::Random;
using testing::StorageCalls;

constexpr uint64_t kElements = 4096;
constexpr uint32_t kThreads = 2;

/// A shard of ftrl.
struct FtrlShard {
  const Optimizer optimizer{Ftrl{}, 0.1, {}};
  const std::shared_ptr<Backend> device = testing::testBackend();
  std::unique_ptr<ShardStorage> storage;

  FtrlShard() {
    auto shards = device->allocate(std::vector<uint64_t>{kElements}, optimizer);
    PSD_REQUIRE_OK(shards);
    storage = std::move(shards->front());
  }
  /// The number of weights that differ from those of the state.
  uint64_t wrongWeights() const {
    StorageCalls calls(*device, *storage);
    std::vector<std::vector<float>> planes;
    const auto add = [&](const Result<ReadView>& view) {
      PSD_REQUIRE_OK(view);
      planes.emplace_back(view->values.begin(), view->values.end());
    };
    add(calls.snapshot(0, kElements));
    for (uint32_t slot = 0; slot < optimizer.slotCount(); slot++) add(calls.readSlot(slot, 0, kElements));
    const std::vector<float> found = planes[0];
    deriveWeights(optimizer, 1, std::vector<std::span<float>>(planes.begin(), planes.end()));
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < kElements; i++) wrong += found[i] != planes[0][i];
    return wrong;
  }
};

TEST_CASE("after steps that raced, ftrl's weights are those of the state in every element") {
  FtrlShard shard;
  Random random(1);
  std::vector<std::unique_ptr<StorageCalls>> calls;
  std::vector<std::vector<float>> gradients;
  for (uint32_t thread = 0; thread < kThreads; thread++) {
    calls.push_back(std::make_unique<StorageCalls>(*shard.device, *shard.storage));
    gradients.push_back(testing::mixedGradient(kElements, random));
  }
  std::atomic<uint64_t> failures{0};
  uint64_t wrong = 0;
  // One step each: a later one would correct what an earlier one left.
  const auto step = [&](uint32_t thread) {
    const UpdateScalars update{.number = 1, .learningRate = 0.1, .races = true};
    failures += !calls[thread]->apply(0, gradients[thread], update).ok();
  };
  testing::runTogether(kThreads, testing::testsCuda() ? 200 : 20'000, step,
                       [&] { wrong += shard.wrongWeights(); });
  CHECK(failures == 0);
  CHECK(wrong == 0);
}

}  // namespace
}  // namespace psd::optimizer_races_test
