#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "server/store/backend.h"
#include "test/support/catch.h"
#include "test/support/random.h"
#include "test/support/storage_calls.h"

namespace psd::testing {

/// Calls `visit` with a default value of each optimizer in the list that is for tensors.
template <class Visit>
void eachAlgorithm(Visit visit) {
  const auto visitOne = [&]<class Algorithm>(const Algorithm& usual) {
    if constexpr (!kRowsOnly<Algorithm>) visit(usual);
  };
  [&]<size_t... kIndices>(std::index_sequence<kIndices...>) {
    (visitOne(std::variant_alternative_t<kIndices, AnyOptimizer>{}), ...);
  }
  (std::make_index_sequence<std::variant_size_v<AnyOptimizer>>());
}

/// The range from which options are drawn.
enum class Draw {
  any,       ///< within the valid range: the default, the minimum, or a value below 1
  moderate,  ///< the default or a value near 1
};

/// Draws options.
struct OptionDrawer {
  Random& random;
  Draw draw = Draw::any;

  void number(OptionKey, double& value, OptionRange range = {}) {
    const double most = std::min(range.max, 1.0);
    if (random.oneIn(2)) return;
    if (range.min >= 1) {
      value = static_cast<double>(random.between(1, 5));  // a count
      return;
    }
    if (draw == Draw::moderate) {
      value = 0.9 * most;
    } else {
      value = random.oneIn(2) ? range.min : std::uniform_real_distribution(range.min, most)(random.engine());
    }
  }
  void flag(OptionKey, bool& value) { value = random.oneIn(2); }
  void numbers(OptionKey key, std::array<double, 2>& values, OptionRange range) {
    for (double& value : values) number(key, value, range);
  }
};

/// Every optimizer in the list that is for tensors: with its defaults, and with `draws` choices of options.
inline std::vector<Optimizer> everyOptimizer(uint64_t draws, Draw draw = Draw::any) {
  std::vector<Optimizer> all;
  eachAlgorithm([&]<class Algorithm>(const Algorithm& usual) {
    Optimizer optimizer;
    optimizer.algorithm = usual;
    optimizer.fullLearningRate = Algorithm::kLearningRate;
    all.push_back(optimizer);
    Random random(draws);
    for (uint64_t i = 0; i < draws;) {
      Algorithm drawn;
      OptionDrawer drawer{random, draw};
      drawn.visitOptions(drawer);
      if constexpr (requires { drawn.problem(); }) {
        if (drawn.problem()) continue;
      }
      optimizer.algorithm = drawn;
      all.push_back(optimizer);
      i++;
    }
  });
  return all;
}

/// Every optimizer that table rows can have, with options drawn like those of everyOptimizer().
inline std::vector<Optimizer> everyOptimizerOfRows(uint64_t draws) {
  std::vector<Optimizer> all = everyOptimizer(draws);
  std::erase_if(all, [](const Optimizer& optimizer) { return optimizer.tensorsOnly(); });
  return all;
}

/// Optimizers of whole rows, which are not for tensors.
inline std::vector<Optimizer> optimizersOfWholeRows() {
  std::vector<Optimizer> all;
  for (const double some : {0., 0.1}) {
    all.push_back({RowwiseAdagrad{.weightDecay = some, .initialAccumulatorValue = 2 * some}, 0.1, {}});
    for (const double group : {0., 0.3}) {
      GroupFtrl algorithm;
      algorithm.l1 = some;
      algorithm.l2 = 2 * some;
      algorithm.groupL1 = group;
      all.push_back({algorithm, 0.1, {}});
    }
  }
  return all;
}

/// Typical gradients, with occasional zeros, tiny and huge values.
inline std::vector<float> mixedGradient(size_t count, Random& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) {
    constexpr std::array kScales = {1.f, 1.f, 1.f, 1.f, 0.f, 1e-30f, 1e-20f, 1e3f};
    value = kScales[random.below(kScales.size())] * normal(random.engine());
  }
  return values;
}

/// Whether two arrays are equal bit for bit. Any NaN equals any other: processors differ in a NaN's sign.
inline bool sameBits(std::span<const float> a, std::span<const float> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float one, float other) {
    return std::bit_cast<uint32_t>(one) == std::bit_cast<uint32_t>(other) ||
           (std::isnan(one) && std::isnan(other));
  });
}

/// All weights of a shard, then each of its slots.
using ShardState = std::vector<std::vector<float>>;

inline bool sameBits(const ShardState& a, const ShardState& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& one, const auto& other) { return sameBits(one, other); });
}

/// The state of a shard after updates, computed by the step functor alone.
class SteppedShard {
 public:
  SteppedShard(const Optimizer& optimizer, const std::vector<float>& weights)
      : optimizer_(optimizer), state_{weights} {
    for (const Slot& slot : optimizer.slots()) state_.emplace_back(weights.size(), slot.initialValue);
  }
  void update(uint64_t number, std::span<const float> gradient) {
    optimizer_.visitStep({number, optimizer_.learningRate(number)}, [&](const auto& step) {
      std::vector<float> slots(state_.size() - 1);
      for (size_t i = 0; i < gradient.size(); i++) {
        for (size_t slot = 0; slot < slots.size(); slot++) slots[slot] = state_[slot + 1][i];
        step(state_[0][i], gradient[i], slots.data());
        for (size_t slot = 0; slot < slots.size(); slot++) state_[slot + 1][i] = slots[slot];
      }
    });
  }
  const ShardState& state() const { return state_; }

 private:
  const Optimizer optimizer_;
  ShardState state_;
};

/// A shard on a device, driven like updates and checkpoints drive it. Owned by one thread.
class DeviceShard {
 public:
  DeviceShard(std::shared_ptr<Backend> device, const Optimizer& optimizer, const std::vector<float>& weights)
      : device_(std::move(device)), optimizer_(optimizer) {
    auto shards = device_->allocate(std::vector<uint64_t>{weights.size()}, optimizer);
    PSD_REQUIRE_OK(shards);
    storage_ = std::move(shards->front());
    calls_ = std::make_unique<StorageCalls>(*device_, *storage_);
    PSD_REQUIRE_OK(calls_->write(0, weights));
  }
  void update(uint64_t number, std::span<const float> gradient) {
    update(number, gradient, 0, gradient.size());
  }
  void update(uint64_t number, std::span<const float> gradient, uint64_t begin, uint64_t count) {
    PSD_REQUIRE_OK(
        calls_->apply(begin, gradient.subspan(begin, count), {number, optimizer_.learningRate(number)}));
  }
  ShardState state() {
    ShardState state;
    const auto add = [&](Result<ReadView> view) {
      PSD_REQUIRE_OK(view);
      state.push_back(copyOf(*view));
    };
    add(calls_->snapshot(0, storage_->elementCount()));
    for (uint32_t slot = 0; slot < optimizer_.slotCount(); slot++) {
      add(calls_->readSlot(slot, 0, storage_->elementCount()));
    }
    return state;
  }
  void restore(const ShardState& state) {
    PSD_REQUIRE_OK(calls_->write(0, state[0]));
    for (uint32_t slot = 0; slot + 1 < state.size(); slot++) {
      PSD_REQUIRE_OK(calls_->writeSlot(slot, 0, state[slot + 1]));
    }
  }

 private:
  const std::shared_ptr<Backend> device_;
  const Optimizer optimizer_;
  std::unique_ptr<ShardStorage> storage_;
  std::unique_ptr<StorageCalls> calls_;
};

}  // namespace psd::testing
