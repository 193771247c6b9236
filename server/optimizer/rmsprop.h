#pragma once

#include <cmath>
#include <vector>

#include "server/optimizer/option.h"

namespace psd {

/// Hinton's RMSprop, optionally centered (Graves 2013) and with momentum: torch::optim::RMSprop. A value
/// type.
struct Rmsprop {
  static constexpr std::string_view kName = "rmsprop";
  static constexpr std::string_view kSummary = "RMSprop.";
  static constexpr double kLearningRate = 1e-2;

  double alpha = 0.99;
  double eps = 1e-8;
  double weightDecay = 0;
  double momentum = 0;
  bool centered = false;

  template <class Options>
  void visitOptions(Options& options) {
    options.number({"alpha", "Decay rate of the mean of squared gradients."}, alpha, kDecayRange);
    options.number(kEpsKey, eps, kEpsRange);
    options.number(kWeightDecayKey, weightDecay);
    options.number(kMomentumKey, momentum);
    options.flag({"centered", "Divide by the variance instead of the mean square."}, centered);
  }

  std::vector<Slot> slots() const {
    std::vector<Slot> slots{{.name = "square_avg", .nonNegative = true}};
    if (momentum > 0) slots.push_back({"momentum_buffer"});
    if (centered) slots.push_back({"grad_avg"});
    return slots;
  }

  template <bool kMomentum, bool kCentered>
  struct Step {
    static constexpr uint32_t kSlots = 1 + kMomentum + kCentered;
    float learningRate, weightDecay, alpha, oneMinusAlpha, eps, momentum;

    PSD_HOST_DEVICE void operator()(float& w, float g, float* slots) const {
      float& squareAverage = slots[0];
      g += weightDecay * w;
      squareAverage = alpha * squareAverage + oneMinusAlpha * g * g;
      float variance = squareAverage;
      if constexpr (kCentered) {
        float& average = slots[1 + kMomentum];
        average = alpha * average + oneMinusAlpha * g;
        variance -= average * average;
        variance = variance > 0 ? variance : 0;  // may be negative by rounding, where LibTorch yields NaN
      }
      const float scale = sqrtf(variance) + eps;
      if constexpr (kMomentum) {
        float& buffer = slots[1];
        buffer = momentum * buffer + g / scale;
        w -= learningRate * buffer;
      } else {
        w -= learningRate * g / scale;
      }
    }
  };

  template <class Visitor>
  void visitStep(const UpdateScalars& update, Visitor&& visitor) const {
    const auto visit = [&]<bool kMomentum, bool kCentered>() {
      visitor(Step<kMomentum, kCentered>{
          static_cast<float>(update.learningRate), static_cast<float>(weightDecay), static_cast<float>(alpha),
          static_cast<float>(1 - alpha), static_cast<float>(eps), static_cast<float>(momentum)});
    };
    if (momentum > 0) {
      centered ? visit.template operator()<true, true>() : visit.template operator()<true, false>();
    } else {
      centered ? visit.template operator()<false, true>() : visit.template operator()<false, false>();
    }
  }
};

}  // namespace psd
