#pragma once

#include <cmath>
#include <vector>

#include "server/optimizer/option.h"

namespace psd {

/// Zeiler 2012: torch.optim.Adadelta. A value type.
struct Adadelta {
  static constexpr std::string_view kName = "adadelta";
  static constexpr std::string_view kSummary = "Adadelta.";
  static constexpr double kLearningRate = 1;

  double rho = 0.9;
  double eps = 1e-6;
  double weightDecay = 0;

  template <class Options>
  void visitOptions(Options& options) {
    options.number({"rho", "Decay rate of the means of squared gradients and of squared steps."}, rho,
                   kDecayRange);
    options.number(kEpsKey, eps, kEpsRange);
    options.number(kWeightDecayKey, weightDecay);
  }

  std::vector<Slot> slots() const {
    return {{.name = "square_avg", .nonNegative = true}, {.name = "acc_delta", .nonNegative = true}};
  }

  struct Step {
    static constexpr uint32_t kSlots = 2;
    float learningRate, weightDecay, rho, oneMinusRho, eps;

    PSD_HOST_DEVICE void operator()(float& w, float g, float* slots) const {
      float &squareAverage = slots[0], &stepAverage = slots[1];
      g += weightDecay * w;
      squareAverage = rho * squareAverage + oneMinusRho * g * g;
      const float step = sqrtf(stepAverage + eps) / sqrtf(squareAverage + eps) * g;
      stepAverage = rho * stepAverage + oneMinusRho * step * step;
      w -= learningRate * step;
    }
  };

  template <class Visitor>
  void visitStep(const UpdateScalars& update, Visitor&& visitor) const {
    visitor(Step{static_cast<float>(update.learningRate), static_cast<float>(weightDecay),
                 static_cast<float>(rho), static_cast<float>(1 - rho), static_cast<float>(eps)});
  }
};

}  // namespace psd
