#pragma once

#include <optional>
#include <vector>

#include "server/optimizer/option.h"

namespace psd {

/// Stochastic gradient descent, optionally with momentum: torch::optim::SGD. A value type.
struct Sgd {
  static constexpr std::string_view kName = "sgd";
  static constexpr std::string_view kSummary = "Stochastic gradient descent.";
  static constexpr double kLearningRate = 1e-2;

  double momentum = 0;
  double dampening = 0;
  double weightDecay = 0;
  bool nesterov = false;

  template <class Options>
  void visitOptions(Options& options) {
    options.number(kMomentumKey, momentum);
    options.number({"dampening", "Share of the gradient that does not enter the momentum."}, dampening);
    options.number(kWeightDecayKey, weightDecay);
    options.flag({"nesterov", "Nesterov momentum; needs `momentum` above 0 and `dampening` 0."}, nesterov);
  }

  std::optional<OptionProblem> problem() const {
    if (!nesterov || (momentum > 0 && dampening == 0)) return std::nullopt;
    return OptionProblem{"nesterov", "Nesterov momentum requires a momentum and zero dampening"};
  }

  std::vector<Slot> slots() const {
    return momentum == 0 ? std::vector<Slot>{} : std::vector<Slot>{{"momentum_buffer"}};
  }

  bool zerosChangeNothing() const { return momentum == 0 && weightDecay == 0; }

  struct PlainStep {
    static constexpr uint32_t kSlots = 0;
    float learningRate, weightDecay;

    PSD_HOST_DEVICE void operator()(float& w, float g, float* /*slots*/) const {
      w -= learningRate * (g + weightDecay * w);
    }
  };

  template <bool kNesterov>
  struct MomentumStep {
    static constexpr uint32_t kSlots = 1;
    float learningRate, weightDecay, momentum;
    float gradientScale;  ///< 1 − dampening, but 1 in the first update, as in LibTorch

    PSD_HOST_DEVICE void operator()(float& w, float g, float* slots) const {
      float& buffer = slots[0];
      g += weightDecay * w;
      buffer = momentum * buffer + gradientScale * g;
      w -= learningRate * (kNesterov ? g + momentum * buffer : buffer);
    }
  };

  template <class Visitor>
  void visitStep(const UpdateScalars& update, Visitor&& visitor) const {
    const float lr = static_cast<float>(update.learningRate);
    const float decay = static_cast<float>(weightDecay);
    const float mu = static_cast<float>(momentum);
    const float scale = update.t() == 1 ? 1.f : static_cast<float>(1 - dampening);
    if (momentum == 0) {
      visitor(PlainStep{lr, decay});
    } else if (nesterov) {
      visitor(MomentumStep<true>{lr, decay, mu, scale});
    } else {
      visitor(MomentumStep<false>{lr, decay, mu, scale});
    }
  }
};

}  // namespace psd
