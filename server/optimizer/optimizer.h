#pragma once

// Plain C++ and no third-party header: .cu files include this.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/optimizer/optimizer_list.h"
#include "server/optimizer/schedule.h"

namespace psd {

/// How gradients become updates: an algorithm with its options, a learning rate and its schedule.
/// The state that it keeps per weight lies in the ShardStorage. A value type.
struct Optimizer {
  AnyOptimizer algorithm = Sgd{};
  double fullLearningRate = Sgd::kLearningRate;  ///< before the schedule
  Schedule schedule;

  std::string_view name() const;
  /// The rate of a shard's update `number` (1, 2, …).
  double learningRate(uint64_t number) const { return schedule.learningRate(fullLearningRate, number); }
  /// The values that the optimizer keeps per weight, in the order of the slots' numbers.
  std::vector<Slot> slots() const;
  uint32_t slotCount() const { return static_cast<uint32_t>(slots().size()); }
  /// Whether the optimizer has an option `momentum` that is not 0.
  bool hasMomentum() const;
  /// Whether a step with a zero gradient leaves a weight as it is and keeps nothing of it.
  bool zerosChangeNothing() const;
  /// Whether it is for tensors alone, and not for embedding tables.
  bool forTensorsAlone() const;
  /// Whether it is for embedding tables alone. Storages of tensors are not given such an optimizer.
  bool forRowsAlone() const;
  /// For people: "sgd lr=0.03 momentum=0.9"; options at their default are left out.
  std::string describe() const;

  /// Calls `visitor` with the step functor for one update; see optimizer_list.h. Not if forRowsAlone().
  template <class Visitor>
  void visitStep(const UpdateScalars& update, Visitor&& visitor) const {
    if (update.difference) return visitor(Sgd::PlainStep{1.f, 0.f});
    std::visit(
        [&]<class Algorithm>(const Algorithm& chosen) {
          if constexpr (!kForRowsAlone<Algorithm>) chosen.visitStep(update, std::forward<Visitor>(visitor));
        },
        algorithm);
  }
  /// Calls `visitor` with the step functor for one update of whole rows. Only if forRowsAlone().
  template <class Visitor>
  void visitRowStep(const UpdateScalars& update, Visitor&& visitor) const {
    std::visit(
        [&]<class Algorithm>(const Algorithm& chosen) {
          if constexpr (kForRowsAlone<Algorithm>) chosen.visitRowStep(update, std::forward<Visitor>(visitor));
        },
        algorithm);
  }
};

}  // namespace psd
