#pragma once

#include <array>
#include <cmath>
#include <vector>

#include "server/optimizer/option.h"

namespace psd {

/// The step of Adam and AdamW. They differ in the use of weight decay: kDecoupled (AdamW) shrinks the weight
/// directly, otherwise decay is added to the gradient.
template <bool kDecoupled, bool kAmsgrad>
struct AdamStep {
  static constexpr uint32_t kSlots = kAmsgrad ? 3 : 2;
  float stepSize;     ///< lr / (1 − β₁ᵗ)
  float weightDecay;  ///< decoupled: the factor 1 − lr·decay
  float beta1, oneMinusBeta1;
  float beta2, oneMinusBeta2;
  float secondMomentScale;  ///< 1 / √(1 − β₂ᵗ)
  float eps;

  PSD_HOST_DEVICE void operator()(float& w, float g, float* slots) const {
    float& average = slots[0];
    float& squareAverage = slots[1];
    if constexpr (kDecoupled) {
      w *= weightDecay;
    } else {
      g += weightDecay * w;
    }
    average = beta1 * average + oneMinusBeta1 * g;
    squareAverage = beta2 * squareAverage + oneMinusBeta2 * g * g;
    float second = squareAverage;
    if constexpr (kAmsgrad) {
      second = slots[2] > second ? slots[2] : second;
      slots[2] = second;
    }
    w -= stepSize * average / (sqrtf(second) * secondMomentScale + eps);
  }
};

/// The options of Adam and AdamW.
template <bool kDecoupled>
struct AdamBase {
  static constexpr double kLearningRate = 1e-3;

  std::array<double, 2> betas{0.9, 0.999};
  double eps = 1e-8;
  double weightDecay = kDecoupled ? 1e-2 : 0;
  bool amsgrad = false;

  template <class Options>
  void visitOptions(Options& options) {
    options.numbers({"betas", "Decay rates of the means of the gradient and of its square."}, betas,
                    kDecayRange);
    options.number(kEpsKey, eps, kEpsRange);
    constexpr OptionKey kDecoupledKey{"weight_decay",
                                      "Before the step the weight shrinks by `lr` times this."};
    options.number(kDecoupled ? kDecoupledKey : kWeightDecayKey, weightDecay);
    options.flag({"amsgrad", "Divide by the largest mean square so far."}, amsgrad);
  }

  std::vector<Slot> slots() const {
    std::vector<Slot> slots{{"exp_avg"}, {.name = "exp_avg_sq", .nonNegative = true}};
    if (amsgrad) slots.push_back({.name = "max_exp_avg_sq", .nonNegative = true});
    return slots;
  }

  template <class Visitor>
  void visitStep(const UpdateScalars& update, Visitor&& visitor) const {
    const auto visit = [&]<bool kAmsgrad>() {
      const double t = static_cast<double>(update.t());
      const double correction1 = 1 - std::pow(betas[0], t);
      const double correction2 = 1 - std::pow(betas[1], t);
      const double decay = kDecoupled ? 1 - update.learningRate * weightDecay : weightDecay;
      visitor(AdamStep<kDecoupled, kAmsgrad>{
          static_cast<float>(update.learningRate / correction1), static_cast<float>(decay),
          static_cast<float>(betas[0]), static_cast<float>(1 - betas[0]), static_cast<float>(betas[1]),
          static_cast<float>(1 - betas[1]), static_cast<float>(1 / std::sqrt(correction2)),
          static_cast<float>(eps)});
    };
    amsgrad ? visit.template operator()<true>() : visit.template operator()<false>();
  }
};

/// Kingma, Ba 2015, optionally AMSGrad (Reddi, Kale, Kumar 2018): torch::optim::Adam. A value type.
struct Adam : AdamBase<false> {
  static constexpr std::string_view kName = "adam", kSummary = "Adam.";
};

}  // namespace psd
