#pragma once

// Plain C++ and no third-party header: .cu files include this.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "common/types/host_device.h"
#include "common/types/hyperparameters.h"

namespace psd {

/// An option's key in the configuration and its sentence in the reference.
struct OptionKey {
  std::string_view name;
  std::string_view text;
};

/// The valid range of an option, inclusive unless stated otherwise.
struct OptionRange {
  double min = 0;
  double max = 1e9;
  bool maxExclusive = false;
  bool whole = false;  ///< problem() checks it
};

// Options of several optimizers.
inline constexpr OptionKey kMomentumKey{"momentum", "Share of the previous step that is kept."};
inline constexpr OptionKey kWeightDecayKey{"weight_decay",
                                           "L2 penalty: this times the weight is added to the gradient."};
inline constexpr OptionKey kEpsKey{"eps", "Added to the denominator."};
inline constexpr OptionKey kAccumulatorKey{"initial_accumulator_value",
                                           "Initial value of the sum of squared gradients."};

/// Range of the constant that keeps a denominator from being zero. Must not round to zero as a float.
inline constexpr OptionRange kEpsRange{1e-30, 1};
/// Learning rates.
inline constexpr OptionRange kLearningRateRange{0, 1e6};
/// Decay rates of running averages.
inline constexpr OptionRange kDecayRange{0, 1, true};

/// An invalid combination of options: the offending key and a human-readable reason.
struct OptionProblem {
  std::string_view key;
  std::string_view message;
};

/// A value that an optimizer keeps per weight or per row.
struct Slot {
  std::string_view name;  ///< as in LibTorch; used in checkpoints
  float initialValue = 0.f;
  bool perRow = false;       ///< one per row of an embedding table instead of one per weight
  bool nonNegative = false;  ///< never negative: the optimizer takes its square root
};

/// Inputs of an optimizer step besides the gradient. Without `pushed` the optimizer's own options and
/// `learningRate` apply. With it, forEachStep() derives the scalars of each run, which have `options`.
struct UpdateScalars {
  uint64_t number = 1;      ///< 1-based count of this shard's updates
  double learningRate = 0;  ///< after schedule and modifiers; unused with `pushed`, except by forSet()
  uint64_t before = 0;      ///< updates by a previous optimizer, not included in this one's state
  /// The gradient is a difference of parameters: w ← w − g, bypassing the optimizer, whose state is
  /// unchanged.
  bool difference = false;
  /// Hyperparameters of the push, in place of the optimizer's own; null: the optimizer's own.
  std::shared_ptr<const Hyperparameters> pushed = {};
  double factor = 1;  ///< of the learning rates in `pushed`
  /// Values of the optimizer's number options, in the order of visitOptions(), in place of its own; empty:
  /// its own. Set by forSet().
  std::span<const double> options = {};
  bool races = false;  ///< other steps may change the same elements meanwhile

  /// The scalars for a run of `pushed`, which keeps `options` valid.
  UpdateScalars forSet(uint32_t set) const {
    UpdateScalars run = *this;
    run.learningRate = pushed->sets[set].front() * factor;
    run.options = std::span(pushed->sets[set]).subspan(1);
    return run;
  }

  /// 1-based count of the updates in the optimizer's state: Adam's t.
  uint64_t t() const { return number - before; }
};

/// Calls `visit(scalars, begin, count)` for each run of the elements [offset, offset + count) that takes a
/// step with the same hyperparameters.
template <class Visit>
void forEachStep(const UpdateScalars& update, uint64_t offset, uint64_t count, Visit&& visit) {
  if (!update.pushed || update.difference) return visit(update, offset, count);
  const uint64_t end = offset + count;
  for (auto run = update.pushed->runAt(offset); offset < end && run != update.pushed->runs.end(); ++run) {
    const uint64_t some = std::min(run->end, end) - offset;
    if (run->steps) visit(update.forSet(run->set), offset, some);
    offset += some;
  }
}

}  // namespace psd
