#pragma once

#include <cmath>
#include <vector>

#include "server/optimizer/option.h"

namespace psd {

/// Adagrad with one sum of squares per row, to which the mean of the row's g² is added: FBGEMM's
/// EXACT_ROWWISE_ADAGRAD. Embedding tables only. A value type.
struct RowwiseAdagrad {
  static constexpr std::string_view kName = "rowwise_adagrad";
  static constexpr std::string_view kSummary =
      "Adagrad with one value of state per row, for groups of embedding tables only.";
  static constexpr std::string_view kForTensors = "adagrad";
  static constexpr double kLearningRate = 1e-2;

  double weightDecay = 0;
  double initialAccumulatorValue = 0;
  double eps = 1e-8;

  template <class Options>
  void visitOptions(Options& options) {
    options.number(kWeightDecayKey, weightDecay);
    options.number(kAccumulatorKey, initialAccumulatorValue);
    options.number(kEpsKey, eps, kEpsRange);
  }

  std::vector<Slot> slots() const {
    return {{.name = "sum", .initialValue = static_cast<float>(initialAccumulatorValue), .perRow = true}};
  }

  struct RowStep {
    static constexpr uint32_t kRowSlots = 1;
    float learningRate, weightDecay, eps;

    /// The gradient of a value including weight decay.
    PSD_HOST_DEVICE float gradient(float w, float g) const { return g + weightDecay * w; }
    /// The step size: each value decreases by factor · gradient(). `sum` is the row's slot.
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
