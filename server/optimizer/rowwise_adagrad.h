#pragma once

#include <cmath>
#include <vector>

#include "server/optimizer/option.h"

namespace psd {

/// Adagrad with one sum of squares for all values of a row, to which the mean of the row's g² is added:
/// FBGEMM's EXACT_ROWWISE_ADAGRAD. For embedding tables alone. A value type.
struct RowwiseAdagrad {
  static constexpr std::string_view kName = "rowwise_adagrad";
  static constexpr double kLearningRate = 1e-2;

  double weightDecay = 0;
  double initialAccumulatorValue = 0;
  double eps = 1e-8;

  template <class Options>
  void visitOptions(Options& options) {
    options.number("weight_decay", weightDecay);
    options.number("initial_accumulator_value", initialAccumulatorValue);
    options.number("eps", eps, kEpsRange);
  }

  std::vector<Slot> slots() const {
    return {{.name = "sum", .initialValue = static_cast<float>(initialAccumulatorValue), .perRow = true}};
  }

  struct RowStep {
    static constexpr uint32_t kRowSlots = 1;
    float learningRate, weightDecay, eps;

    /// What the gradient of a value is with weight decay.
    PSD_HOST_DEVICE float gradient(float w, float g) const { return g + weightDecay * w; }
    /// By what gradient() is multiplied and then taken off the value; `sum` is the row's slot.
    PSD_HOST_DEVICE float factor(float meanSquare, float& sum) const {
      sum += meanSquare;
      return learningRate / (sqrtf(sum) + eps);
    }
  };

  template <class Visitor>
  void visitRowStep(const UpdateScalars& update, Visitor&& visitor) const {
    visitor(RowStep{static_cast<float>(update.learningRate), static_cast<float>(weightDecay),
                    static_cast<float>(eps)});
  }
};

}  // namespace psd
