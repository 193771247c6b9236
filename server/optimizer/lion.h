#pragma once

#include <array>
#include <cmath>
#include <vector>

#include "server/optimizer/option.h"

namespace psd {

/// Lion (Chen et al. 2023): a step of fixed size in the direction of the sign. A value type.
struct Lion {
  static constexpr std::string_view kName = "lion", kSummary = "Lion: steps of fixed size.";
  static constexpr double kLearningRate = 1e-4;

  std::array<double, 2> betas{0.9, 0.99};
  double weightDecay = 0;

  template <class Options>
  void visitOptions(Options& options) {
    options.numbers({"betas", "Decay rates of the direction and of the mean of the gradient."}, betas,
                    kDecayRange);
    constexpr OptionKey kDecoupledKey{"weight_decay",
                                      "Before the step the weight shrinks by `lr` times this."};
    options.number(kDecoupledKey, weightDecay);
  }

  std::vector<Slot> slots() const { return {{"exp_avg"}}; }

  struct Step {
    static constexpr uint32_t kSlots = 1;
    float learningRate, shrink;
    float beta1, oneMinusBeta1, beta2, oneMinusBeta2;

    PSD_HOST_DEVICE void operator()(float& w, float g, float* slots) const {
      float& average = slots[0];
      const float direction = beta1 * average + oneMinusBeta1 * g;
      const float sign = direction > 0 ? 1.f : direction < 0 ? -1.f : 0.f;
      w = w * shrink - learningRate * sign;
      average = beta2 * average + oneMinusBeta2 * g;
    }
  };

  template <class Visitor>
  void visitStep(const UpdateScalars& update, Visitor&& visitor) const {
    visitor(Step{static_cast<float>(update.learningRate),
                 static_cast<float>(1 - update.learningRate * weightDecay), static_cast<float>(betas[0]),
                 static_cast<float>(1 - betas[0]), static_cast<float>(betas[1]),
                 static_cast<float>(1 - betas[1])});
  }
};

}  // namespace psd
