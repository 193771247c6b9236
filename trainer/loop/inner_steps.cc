#include "trainer/loop/inner_steps.h"

#include <cmath>

namespace psd {
namespace {

// Plain loops over restricted pointers, which the compiler vectorises.

void plainSteps(size_t count, float rate, float decay, const float* __restrict g, float* __restrict w) {
  if (decay == 0) {
    for (size_t i = 0; i < count; ++i) w[i] -= rate * g[i];
  } else {
    for (size_t i = 0; i < count; ++i) w[i] -= rate * (g[i] + decay * w[i]);
  }
}

struct Momentum {
  float rate, decay, momentum;
  bool nesterov;
};

/// `buffer` starts as zeros, so after the first step it equals the gradient, as in LibTorch.
void momentumSteps(size_t count, const Momentum& by, const float* __restrict gradients,
                   float* __restrict buffer, float* __restrict w) {
  for (size_t i = 0; i < count; ++i) {
    const float g = gradients[i] + by.decay * w[i];
    buffer[i] = by.momentum * buffer[i] + g;
    w[i] -= by.rate * (by.nesterov ? g + by.momentum * buffer[i] : buffer[i]);
  }
}

struct AdamScalars {
  float stepSize;          // rate / (1 − β₁ᵗ)
  float shrink, decay;     // adamw: factor of the weight; adam: share of the weight added to the gradient
  float beta1, newOfMean;  // β₁ and 1 − β₁
  float beta2, newOfSquares;
  float squaresScale;  // 1 / √(1 − β₂ᵗ)
  float eps;
};

void adamSteps(size_t count, const AdamScalars& by, const float* __restrict gradients, float* __restrict mean,
               float* __restrict squares, float* __restrict w) {
  for (size_t i = 0; i < count; ++i) {
    const float g = gradients[i] + by.decay * w[i];
    mean[i] = by.beta1 * mean[i] + by.newOfMean * g;
    squares[i] = by.beta2 * squares[i] + by.newOfSquares * g * g;
    w[i] = w[i] * by.shrink - by.stepSize * mean[i] / (std::sqrt(squares[i]) * by.squaresScale + by.eps);
  }
}

}  // namespace

void InnerSteps::step(double rate, std::span<const float> gradients, std::span<float> weights) {
  ++steps_;
  if (optimizer_.type == InnerOptimizer::Type::sgd) {
    stepSgd(static_cast<float>(rate), gradients, weights);
  } else {
    stepAdam(rate, gradients, weights);
  }
}

void InnerSteps::stepSgd(float rate, std::span<const float> gradients, std::span<float> weights) {
  const auto decay = static_cast<float>(optimizer_.weightDecay);
  if (optimizer_.momentum == 0)
    return plainSteps(weights.size(), rate, decay, gradients.data(), weights.data());
  momentum_.resize(weights.size());
  momentumSteps(weights.size(), {rate, decay, static_cast<float>(optimizer_.momentum), optimizer_.nesterov},
                gradients.data(), momentum_.data(), weights.data());
}

void InnerSteps::stepAdam(double rate, std::span<const float> gradients, std::span<float> weights) {
  momentum_.resize(weights.size());
  secondMoment_.resize(weights.size());
  const auto t = static_cast<double>(steps_);
  const auto [beta1, beta2] = optimizer_.betas;
  const bool decoupled = optimizer_.type == InnerOptimizer::Type::adamw;
  const double decay = optimizer_.weightDecay;
  const AdamScalars by{.stepSize = static_cast<float>(rate / (1 - std::pow(beta1, t))),
                       .shrink = static_cast<float>(decoupled ? 1 - rate * decay : 1),
                       .decay = static_cast<float>(decoupled ? 0 : decay),
                       .beta1 = static_cast<float>(beta1),
                       .newOfMean = static_cast<float>(1 - beta1),
                       .beta2 = static_cast<float>(beta2),
                       .newOfSquares = static_cast<float>(1 - beta2),
                       .squaresScale = static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, t))),
                       .eps = static_cast<float>(optimizer_.eps)};
  adamSteps(weights.size(), by, gradients.data(), momentum_.data(), secondMoment_.data(), weights.data());
}

}  // namespace psd
