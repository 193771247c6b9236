// The contract of every optimizer in optimizer_list.h, for all options.

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "common/types/model_layout.h"
#include "server/optimizer/optimizer_config.h"
#include "test/support/any_optimizer.h"
#include "test/support/async_backend.h"

namespace psd::optimizer_contract_test {
namespace {

using testing::DeviceShard;
using testing::Draw;
using testing::eachAlgorithm;
using testing::everyOptimizer;
using testing::mixedGradient;
using testing::Random;
using testing::sameBits;
using testing::ShardState;
using testing::SteppedShard;
using Json = nlohmann::ordered_json;

constexpr uint64_t kDraws = 25;
constexpr size_t kElements = 1003;
constexpr uint64_t kUpdates = 6;

Result<Optimizer> readBack(const Json& json) {
  ObjectReader reader(json);
  Optimizer optimizer = readOptimizer(reader);
  PSD_RETURN_IF_ERROR(reader.finish());
  return optimizer;
}

/// kUpdates gradients, and initial weights.
struct Course {
  explicit Course(uint64_t seed, size_t elements = kElements) {
    Random random(seed);
    start = mixedGradient(elements, random);
    for (uint64_t i = 0; i < kUpdates; i++) gradients.push_back(mixedGradient(elements, random));
  }
  template <class Shard>
  void run(Shard& shard, uint64_t first = 1, uint64_t last = kUpdates) const {
    for (uint64_t number = first; number <= last; number++) shard.update(number, gradients[number - 1]);
  }

  std::vector<float> start;
  std::vector<std::vector<float>> gradients;
};

TEST_CASE("an optimizer has as many slots as its step uses, each with a name and a finite initial value") {
  for (const Optimizer& optimizer : everyOptimizer(kDraws)) {
    INFO(optimizer.describe());
    std::set<std::string_view> names;
    for (const Slot& slot : optimizer.slots()) {
      CHECK_FALSE(slot.name.empty());
      CHECK(std::isfinite(slot.initialValue));
      names.insert(slot.name);
    }
    CHECK(names.size() == optimizer.slotCount());
    for (const uint64_t number : {1, 2, 1000}) {
      optimizer.visitStep({number, 0.1}, [&]<class Step>(const Step& step) {
        CHECK(Step::kSlots == optimizer.slotCount());
        // Memory beyond the last is not changed.
        std::vector<float> slots(optimizer.slotCount() + 1, 1.f);
        slots.back() = -7;
        float weight = 1;
        step(weight, 0.5f, slots.data());
        CHECK(slots.back() == -7);
      });
    }
  }
}

bool isFinite(const ShardState& state) {
  return std::all_of(state.begin(), state.end(), [](const auto& values) {
    return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
  });
}

TEST_CASE("an optimizer keeps weights and slots finite under finite gradients") {
  const auto check = [](const Optimizer& optimizer, uint64_t updates) {
    INFO(optimizer.describe() << ", " << updates << " updates");
    for (uint64_t seed = 1; seed <= 5; seed++) {
      const Course course(seed, 64);
      SteppedShard changing(optimizer, course.start), constant(optimizer, course.start);
      for (uint64_t number = 1; number <= updates; number++) {
        changing.update(number, course.gradients[number % kUpdates]);
        constant.update(number, course.gradients[0]);
      }
      CHECK(isFinite(changing.state()));
      CHECK(isFinite(constant.state()));
    }
  };
  // Odd options may diverge, but not immediately.
  for (const Optimizer& optimizer : everyOptimizer(4 * kDraws)) check(optimizer, 1);
  for (const Optimizer& optimizer : everyOptimizer(4 * kDraws, Draw::moderate)) check(optimizer, 200);
}

TEST_CASE("an optimizer moves weights against the gradient, and by nothing at rate 0 or by all at its own") {
  for (const Optimizer& optimizer : everyOptimizer(0)) {
    INFO(optimizer.describe());
    SteppedShard shard(optimizer, std::vector<float>(2, 0.f));
    for (uint64_t number = 1; number <= 20; number++) shard.update(number, std::vector{1.f, -1.f});
    CHECK(shard.state()[0][0] < 0);
    CHECK(shard.state()[0][1] == -shard.state()[0][0]);
    if (optimizer.derivesWeights()) continue;  // has no rate 0
    Optimizer still = optimizer;
    still.fullLearningRate = 0;
    const std::vector<float> start = {0.5f, -2.f};
    SteppedShard resting(still, start);
    for (uint64_t number = 1; number <= 3; number++) resting.update(number, std::vector{1.f, -1.f});
    CHECK(sameBits(resting.state()[0], start));
  }
}

TEST_CASE("if an optimizer declares that zeros change nothing, they do not") {
  size_t said = 0;
  for (const Optimizer& optimizer : everyOptimizer(kDraws)) {
    if (!optimizer.zerosChangeNothing()) continue;
    said++;
    INFO(optimizer.describe());
    const Course course(3);
    SteppedShard shard(optimizer, course.start);
    const std::vector<float> zeros(kElements, 0.f);
    for (uint64_t number = 1; number <= 2 * kUpdates; number += 2) {
      const ShardState before = shard.state();
      shard.update(number, zeros);
      REQUIRE(sameBits(shard.state(), before));
      shard.update(number + 1, course.gradients[number / 2]);
      REQUIRE_FALSE(sameBits(shard.state(), before));
    }
  }
  CHECK(said > 0);
}

DEVICE_TEST("a device computes the same bits of an update as the step functor alone") {
  const Course course(4);
  for (const Optimizer& optimizer : everyOptimizer(kDraws)) {
    INFO(optimizer.describe());
    SteppedShard expected(optimizer, course.start);
    DeviceShard shard(device.make(), optimizer, course.start);
    course.run(expected);
    course.run(shard);
    CHECK(sameBits(shard.state(), expected.state()));
    DeviceShard again(device.make(), optimizer, course.start);
    course.run(again);
    CHECK(sameBits(again.state(), shard.state()));
  }
}

DEVICE_TEST("an update in slices, in any order, gives the same bits as one of the whole") {
  const Course course(5);
  Random random(6);
  for (const Optimizer& optimizer : everyOptimizer(kDraws)) {
    INFO(optimizer.describe());
    DeviceShard whole(device.make(), optimizer, course.start), sliced(device.make(), optimizer, course.start);
    course.run(whole);
    for (uint64_t number = 1; number <= kUpdates; number++) {
      std::vector<std::pair<uint64_t, uint64_t>> slices;
      for (uint64_t begin = 0, count = 0; begin < kElements; begin += count) {
        count = std::min(random.between(1, 30) * kLayoutGrainElements, kElements - begin);
        slices.emplace_back(begin, count);
      }
      std::shuffle(slices.begin(), slices.end(), random.engine());
      for (auto [begin, count] : slices) {
        sliced.update(number, course.gradients[number - 1], begin, count);
      }
    }
    CHECK(sameBits(sliced.state(), whole.state()));
  }
}

DEVICE_TEST("an optimizer resumes from restored weights and slots without a difference") {
  const Course course(7);
  for (const Optimizer& optimizer : everyOptimizer(kDraws)) {
    INFO(optimizer.describe());
    DeviceShard straight(device.make(), optimizer, course.start);
    course.run(straight, 1, 3);
    DeviceShard restored(device.make(), optimizer, std::vector<float>(kElements, 9.f));
    restored.restore(straight.state());
    REQUIRE(sameBits(restored.state(), straight.state()));
    course.run(straight, 4);
    course.run(restored, 4);
    CHECK(sameBits(restored.state(), straight.state()));
  }
}

TEST_CASE("a printed optimizer parses to the same, to the last bit of its steps") {
  const Course course(8, 64);
  std::set<std::string> described;
  for (const Optimizer& optimizer : everyOptimizer(kDraws)) {
    INFO(optimizer.describe());
    const Json written = writeOptimizer(optimizer);
    const auto again = readBack(written);
    PSD_REQUIRE_OK(again);
    CHECK(again->describe() == optimizer.describe());
    CHECK(writeOptimizer(*again) == written);
    CHECK(again->algorithm.index() == optimizer.algorithm.index());
    SteppedShard one(optimizer, course.start), other(*again, course.start);
    course.run(one);
    course.run(other);
    CHECK(sameBits(one.state(), other.state()));
    // The options that the reader reports as effective are those printed.
    ObjectReader reader(written);
    readOptimizer(reader);
    PSD_REQUIRE_OK(reader.finish());
    const Json effective = reader.effective();
    for (const auto& [key, value] : effective.items()) {
      if (key != "schedule") CHECK(written[key] == value);
    }
    described.insert(optimizer.describe());
  }
  CHECK(described.size() > 5 * std::variant_size_v<AnyOptimizer>);  // the options are distinguished
}

/// Each option with a value beyond each end of its range.
struct OptionsBeyond {
  std::vector<std::pair<std::string, Json>> found;

  void number(OptionKey key, double, OptionRange range = {}) {
    found.emplace_back(key.name, range.min - 1);
    found.emplace_back(key.name, range.maxExclusive ? range.max : range.max * 2);
    found.emplace_back(key.name, "much");
  }
  void flag(OptionKey key, bool) { found.emplace_back(key.name, 1); }
  void numbers(OptionKey key, const std::array<double, 2>& values, OptionRange range) {
    found.emplace_back(key.name, Json{values[0], range.maxExclusive ? range.max : range.max * 2});
    found.emplace_back(key.name, Json{range.min - 1, values[1]});
    found.emplace_back(key.name, Json{values[0]});
  }
};

TEST_CASE("an optimizer's default needs its name alone, and options out of range are rejected by key") {
  std::set<std::string_view> names;
  eachAlgorithm([&]<class Algorithm>(Algorithm usual) {
    INFO(Algorithm::kName);
    CHECK(names.insert(Algorithm::kName).second);
    const Json named = {{"type", Algorithm::kName}};
    const auto plain = readBack(named);
    PSD_REQUIRE_OK(plain);
    CHECK(plain->fullLearningRate == Algorithm::kLearningRate);
    CHECK(plain->describe().starts_with(std::string(Algorithm::kName) + " lr="));
    CHECK(plain->describe().find(' ') == plain->describe().rfind(' '));
    OptionsBeyond options;
    usual.visitOptions(options);
    for (const auto& [key, value] : options.found) {
      Json wrong = named;
      wrong[key] = value;
      INFO(wrong.dump());
      const auto refused = readBack(wrong);
      REQUIRE_FALSE(refused.ok());
      CHECK(refused.message().starts_with(key));
    }
    Json unknown = named;
    unknown["no_such_option"] = 1;
    CHECK_FALSE(readBack(unknown).ok());
  });
}

}  // namespace
}  // namespace psd::optimizer_contract_test
