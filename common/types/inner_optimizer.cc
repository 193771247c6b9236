#include "common/types/inner_optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <fmt/format.h>

namespace psd {

double InnerOptimizer::rateAt(uint64_t number) const {
  if (number <= warmupSteps) return rate * static_cast<double>(number) / static_cast<double>(warmupSteps);
  if (totalSteps == 0) return rate;
  const auto span = static_cast<double>(totalSteps - warmupSteps);
  const double progress = std::min(static_cast<double>(number - warmupSteps) / span, 1.0);
  return rateMin + (rate - rateMin) * (1 + std::cos(std::numbers::pi * progress)) / 2;
}

std::string InnerOptimizer::describe() const {
  std::string text = fmt::format("{} lr={}", nameOf(type), rate);
  if (momentum != 0) text += fmt::format(" momentum={}{}", momentum, nesterov ? " nesterov" : "");
  if (weightDecay != 0) text += fmt::format(" weight_decay={}", weightDecay);
  if (const InnerOptimizer usual; type != Type::sgd && (betas != usual.betas || eps != usual.eps)) {
    text += fmt::format(" betas={},{} eps={}", betas[0], betas[1], eps);
  }
  if (totalSteps != 0) {
    text +=
        fmt::format(", cosine warmup_steps={} total_steps={} lr_min={}", warmupSteps, totalSteps, rateMin);
  } else if (warmupSteps != 0) {
    text += fmt::format(", warmup_steps={}", warmupSteps);
  }
  return text;
}

bool InnerOptimizer::isValid() const {
  const auto isNumber = [](double value) { return std::isfinite(value) && value >= 0; };
  const auto isShare = [](double value) { return value >= 0 && value < 1; };
  return isNumber(rate) && isNumber(weightDecay) && isShare(momentum) && (!nesterov || momentum > 0) &&
         isShare(betas[0]) && isShare(betas[1]) && isNumber(eps) && isNumber(rateMin) && rateMin <= rate &&
         (totalSteps == 0 || totalSteps > warmupSteps);
}

std::string_view nameOf(InnerOptimizer::Type type) {
  switch (type) {
    case InnerOptimizer::Type::sgd: return "sgd";
    case InnerOptimizer::Type::adam: return "adam";
    case InnerOptimizer::Type::adamw: return "adamw";
  }
  return "?";
}

}  // namespace psd
