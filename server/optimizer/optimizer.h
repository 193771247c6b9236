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
  /// Human-readable: "sgd lr=0.03 momentum=0.9"; omits options with default values.
  std::string describe() const;

  /// Calls `visitor` with the step functor for one update; see optimizer_list.h. Does nothing if
  /// rowsOnly(), except for a difference.
  template <class Visitor>
  void visitStep(const UpdateScalars& update, Visitor&& visitor) const {
    if (update.difference) return visitor(Sgd::PlainStep{1.f, 0.f});
    std::visit(
        [&]<class Algorithm>(const Algorithm& chosen) {
          if constexpr (!kRowsOnly<Algorithm>) chosen.visitStep(update, std::forward<Visitor>(visitor));
        },
        algorithm);
  }
  /// Calls `visitor` with the step functor for one update of whole rows. Does nothing unless rowsOnly().
  template <class Visitor>
  void visitRowStep(const UpdateScalars& update, Visitor&& visitor) const {
    std::visit(
        [&]<class Algorithm>(const Algorithm& chosen) {
          if constexpr (kRowsOnly<Algorithm>) chosen.visitRowStep(update, std::forward<Visitor>(visitor));
        },
        algorithm);
  }
};

}  // namespace psd
