#pragma once

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "server/optimizer/option.h"

namespace psd {

/// The numbers of a step of FTRL-Proximal, and what its steps have in common. The state of a weight is z, the
/// sum of the gradients less the pull towards earlier weights, and n, the sum of the squared gradients.
struct FtrlNumbers {
  static constexpr float kSumMax = std::numeric_limits<float>::max();

  float l1;
  float base;         ///< β/α + l2
  float inverseRate;  ///< 1/α

  /// −z, with its magnitude lowered by l1; 0 where that is not positive.
  PSD_HOST_DEVICE float shrunk(float z) const { return z > l1 ? l1 - z : z < -l1 ? -l1 - z : 0.f; }
  /// What shrunk() is divided by: (β + √n)/α + l2.
  PSD_HOST_DEVICE float divisor(float n) const { return base + inverseRate * sqrtf(n); }
  /// Adds a gradient that was computed from the weight `w` to the state.
  PSD_HOST_DEVICE void add(float w, float g, float& z, float& n) const {
    float sum = n + g * g;
    sum = sum < kSumMax ? sum : kSumMax;  // an infinite one would make the next z NaN
    z += g - inverseRate * (sqrtf(sum) - sqrtf(n)) * w;
    n = sum;
  }
  /// A z of which shrunk() is `value`, up to rounding.
  PSD_HOST_DEVICE float unshrunk(float value) const {
    return value > 0 ? -value - l1 : value < 0 ? l1 - value : 0.f;
  }
};

/// The step of Ftrl. The weight derives from the slots z and n, so the weight before the step is not read.
template <bool kRacing>
struct FtrlStep : FtrlNumbers {
  static constexpr uint32_t kSlots = 2;
  static constexpr bool kRaces = kRacing;

  PSD_HOST_DEVICE float weight(const float* slots) const { return shrunk(slots[0]) / divisor(slots[1]); }
  PSD_HOST_DEVICE void operator()(float& w, float g, float* slots) const {
    add(weight(slots), g, slots[0], slots[1]);
    w = weight(slots);
  }
  /// The z with which the weight is `w`, up to rounding.
  PSD_HOST_DEVICE float z(float w, float n) const { return unshrunk(w * divisor(n)); }
};

/// The options of Ftrl and GroupFtrl. The paper's α is the learning rate. z has the sum of the steps' 1/α in
/// it, so the rate may not change.
struct FtrlBase {
  static constexpr double kLearningRate = 0.1;
  static constexpr OptionRange kLearningRates{1e-9, 1e6};  // 1/α times √n stays finite
  static constexpr bool kDerivesWeights = true;

  double beta = 1;
  double l1 = 0;
  double l2 = 0;
  double initialAccumulatorValue = 0;

  template <class Options>
  void visitOptions(Options& options) {
    options.number({"beta", "β: the rate of a weight with squared gradients n is lr / (β + √n)."}, beta);
    options.number({"l1", "L1 penalty: a weight is exactly 0 while its z is at most this in magnitude."}, l1);
    options.number({"l2", "L2 penalty, l2/2 · w²; twice TensorFlow's `l2_regularization_strength`."}, l2);
    options.number(kAccumulatorKey, initialAccumulatorValue);
  }

  std::optional<OptionProblem> problem() const {
    if (beta + l2 + initialAccumulatorValue >= kDivisorMin) return std::nullopt;
    return OptionProblem{"beta",
                         "must be above 0 while l2 and initial_accumulator_value are 0: a weight is divided "
                         "by their sum"};
  }

  std::vector<Slot> slots() const {
    const auto sum = static_cast<float>(initialAccumulatorValue);
    return {{"z"}, {.name = "n", .initialValue = sum, .nonNegative = true}};
  }

 protected:
  static constexpr double kDivisorMin = 1e-30;  // the divisor does not round to 0 as a float

  FtrlNumbers numbersAt(double rate) const {
    return {static_cast<float>(l1), static_cast<float>(beta / rate + l2), static_cast<float>(1 / rate)};
  }
};

/// FTRL-Proximal with L1 and L2 penalties (McMahan et al. 2013). A value type.
struct Ftrl : FtrlBase {
  static constexpr std::string_view kName = "ftrl";
  static constexpr std::string_view kSummary =
      "FTRL-Proximal, for sparse linear models: most weights are exactly 0.";

  template <class Visitor>
  void visitStep(const UpdateScalars& update, Visitor&& visitor) const {
    const FtrlNumbers numbers = numbersAt(update.learningRate);
    update.races ? visitor(FtrlStep<true>{numbers}) : visitor(FtrlStep<false>{numbers});
  }
};

}  // namespace psd
