#pragma once

#include <cmath>
#include <optional>
#include <vector>

#include "server/optimizer/option.h"

namespace psd {

/// Delayed Nesterov (Liu, Chhaparia, Douillard, Kale, Rusu, Shen, Szlam, Ranzato 2024), for gradients that
/// are applied one by one although they belong to rounds of N = `delay`. Each update steps by 1 / N of its
/// gradient, and every N-th update also applies the sum of these since the previous one to the momentum. N =
/// 1: bit-identical to Sgd with Nesterov momentum. A value type.
struct DelayedNesterov {
  static constexpr std::string_view kName = "delayed_nesterov";
  static constexpr std::string_view kSummary =
      "Nesterov momentum for gradients that arrive one by one, for tensors only.";
  static constexpr double kLearningRate = 0.7;
  static constexpr bool kTensorsOnly = true;  // a row misses updates that do not touch it

  double momentum = 0.9;
  double delay = 1;

  template <class Options>
  void visitOptions(Options& options) {
    options.number(kMomentumKey, momentum, kDecayRange);
    options.number({"delay",
                    "N: an update is a step by 1 / N of its gradient, and the momentum moves at every N-th "
                    "update, by the mean of the last N. 1: SGD with Nesterov momentum."},
                   delay, {.min = 1, .max = 1e6, .whole = true});
  }

  std::optional<OptionProblem> problem() const {
    if (delay == std::floor(delay)) return std::nullopt;
    return OptionProblem{"delay", "must be an integer: the number of updates per momentum update"};
  }

  std::vector<Slot> slots() const { return {{"momentum_buffer"}, {"accumulator"}}; }

  template <bool kMovesMomentum>
  struct Step {
    static constexpr uint32_t kSlots = 2;
    float learningRate, share, momentum;

    PSD_HOST_DEVICE void operator()(float& w, float g, float* slots) const {
      float& buffer = slots[0];
      float& sum = slots[1];
      g *= share;
      sum += g;
      if constexpr (kMovesMomentum) {
        buffer = momentum * buffer + sum;
        sum = 0;
        g += momentum * buffer;
      }
      w -= learningRate * g;
    }
  };

  template <class Visitor>
  void visitStep(const UpdateScalars& update, Visitor&& visitor) const {
    const float lr = static_cast<float>(update.learningRate);
    const float share = static_cast<float>(1 / delay);
    const float mu = static_cast<float>(momentum);
    if (update.t() % static_cast<uint64_t>(delay) == 0) {
      visitor(Step<true>{lr, share, mu});
    } else {
      visitor(Step<false>{lr, share, mu});
    }
  }
};

}  // namespace psd
