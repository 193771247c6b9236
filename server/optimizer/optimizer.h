#pragma once

// Plain C++ and no third-party header: .cu files include this.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status/status.h"
#include "server/optimizer/optimizer_list.h"
#include "server/optimizer/schedule.h"

namespace psd {

/// An optimizer: an algorithm with its options, a learning rate and its schedule. Its per-weight state is in
/// the ShardStorage. A value type.
struct Optimizer {
  AnyOptimizer algorithm = Sgd{};
  double fullLearningRate = Sgd::kLearningRate;  ///< before the schedule
  Schedule schedule;

  std::string_view name() const;
  /// The learning rate of a shard's update `number` (1, 2, …).
  double learningRate(uint64_t number) const { return schedule.learningRate(fullLearningRate, number); }
  /// The optimizer's per-weight state, in slot order.
  std::vector<Slot> slots() const;
  uint32_t slotCount() const { return static_cast<uint32_t>(slots().size()); }
  /// Whether the optimizer has a non-zero option `momentum`.
  bool hasMomentum() const;
  /// Whether a step with a zero gradient changes neither weight nor state.
  bool zerosChangeNothing() const;
  /// Whether the optimizer supports tensors only, not embedding tables.
  bool tensorsOnly() const;
  /// Whether the optimizer supports embedding tables only. Such an optimizer is never used for tensors.
  bool rowsOnly() const;
  /// Whether the weights are a function of the state. Then the learning rate never changes.
  bool derivesWeights() const;
  /// For an optimizer with rowsOnly(): the name of one for tensors.
  std::string_view forTensors() const;
  /// The valid learning rates, before the schedule.
  OptionRange learningRates() const;
  /// Human-readable: "sgd lr=0.03 momentum=0.9"; omits options with default values.
  std::string describe() const;
  /// Names of a push's hyperparameters, in order: "lr", then those of the number options, such as "betas[0]".
  std::vector<std::string> hyperparameterNames() const;
  /// The hyperparameters in the same order, with the rate before the schedule.
  std::vector<double> hyperparameters() const;
  /// Whether a push may bring these values, in the same order. ErrorCode::invalidArgument names the wrong
  /// one.
  Status checkHyperparameters(std::span<const double> values) const;

  /// Calls `visitor` with the step functor for one update; see optimizer_list.h. Does nothing if
  /// rowsOnly(), except for a difference.
  template <class Visitor>
  void visitStep(const UpdateScalars& update, Visitor&& visitor) const {
    if (update.difference) return visitor(Sgd::PlainStep{1.f, 0.f});
    std::visit(
        [&]<class Algorithm>(const Algorithm& chosen) {
          if constexpr (!kRowsOnly<Algorithm>) {
            if (update.options.empty()) return chosen.visitStep(update, std::forward<Visitor>(visitor));
            withOptions(chosen, update.options).visitStep(update, std::forward<Visitor>(visitor));
          }
        },
        algorithm);
  }
  /// Calls `visitor` with the step functor for one update of whole rows. Does nothing unless rowsOnly().
  template <class Visitor>
  void visitRowStep(const UpdateScalars& update, Visitor&& visitor) const {
    std::visit(
        [&]<class Algorithm>(const Algorithm& chosen) {
          if constexpr (kRowsOnly<Algorithm>) {
            if (update.options.empty()) return chosen.visitRowStep(update, std::forward<Visitor>(visitor));
            withOptions(chosen, update.options).visitRowStep(update, std::forward<Visitor>(visitor));
          }
        },
        algorithm);
  }

 private:
  /// Sets number options in order; flags keep their values.
  struct OptionSetter {
    std::span<const double> values;

    void number(OptionKey, double& value, OptionRange = {}) { value = next(); }
    void flag(OptionKey, bool&) {}
    void numbers(OptionKey, std::array<double, 2>& both, OptionRange) {
      for (double& value : both) value = next();
    }

   private:
    double next() {
      const double value = values.front();
      values = values.subspan(1);
      return value;
    }
  };
  template <class Algorithm>
  static Algorithm withOptions(Algorithm algorithm, std::span<const double> values) {
    OptionSetter setter{values};
    algorithm.visitOptions(setter);
    return algorithm;
  }
};

}  // namespace psd
