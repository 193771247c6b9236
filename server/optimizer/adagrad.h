#pragma once

#include <cmath>
#include <vector>

#include "server/optimizer/option.h"

namespace psd {

/// Duchi, Hazan, Singer 2011: torch::optim::Adagrad. A value type.
struct Adagrad {
  static constexpr std::string_view kName = "adagrad";
  static constexpr std::string_view kSummary = "Adagrad.";
  static constexpr double kLearningRate = 1e-2;

  double lrDecay = 0;
  double weightDecay = 0;
  double initialAccumulatorValue = 0;
  double eps = 1e-10;

  template <class Options>
  void visitOptions(Options& options) {
    options.number({"lr_decay", "The rate of update t is lr / (1 + (t − 1) · lr_decay)."}, lrDecay);
    options.number(kWeightDecayKey, weightDecay);
    options.number(kAccumulatorKey, initialAccumulatorValue);
    options.number(kEpsKey, eps, kEpsRange);
  }

  std::vector<Slot> slots() const {
    return {
        {.name = "sum", .initialValue = static_cast<float>(initialAccumulatorValue), .nonNegative = true}};
  }

  struct Step {
    static constexpr uint32_t kSlots = 1;
    float learningRate, weightDecay, eps;

    PSD_HOST_DEVICE void operator()(float& w, float g, float* slots) const {
      float& sum = slots[0];
      g += weightDecay * w;
      sum += g * g;
      w -= learningRate * g / (sqrtf(sum) + eps);
    }
  };

  template <class Visitor>
  void visitStep(const UpdateScalars& update, Visitor&& visitor) const {
    const double decayed = update.learningRate / (1 + static_cast<double>(update.t() - 1) * lrDecay);
    visitor(Step{static_cast<float>(decayed), static_cast<float>(weightDecay), static_cast<float>(eps)});
  }
};

}  // namespace psd
