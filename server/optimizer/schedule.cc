#include "server/optimizer/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "server/optimizer/option_text.h"

namespace psd {

double Schedule::learningRate(double lr, uint64_t number) const {
  if (number <= warmupUpdates) {
    return lr * static_cast<double>(number) / static_cast<double>(warmupUpdates);
  }
  const uint64_t sinceWarmup = number - warmupUpdates;  // from 1
  switch (type) {
    case Type::constant: return lr;
    case Type::step: {
      const uint64_t decays = (sinceWarmup - 1) / everyUpdates;
      return lr * std::pow(gamma, static_cast<double>(decays));
    }
    case Type::cosine: {
      const double span = static_cast<double>(totalUpdates - warmupUpdates);
      const double progress = std::min(static_cast<double>(sinceWarmup) / span, 1.0);
      return lrMin + (lr - lrMin) * (1 + std::cos(std::numbers::pi * progress)) / 2;
    }
  }
  return lr;
}

std::string Schedule::describe() const {
  std::string text;
  if (type == Type::step) {
    text = "step every_updates=" + std::to_string(everyUpdates) + " gamma=" + numberText(gamma);
  } else if (type == Type::cosine) {
    text = "cosine total_updates=" + std::to_string(totalUpdates) + " lr_min=" + numberText(lrMin);
  }
  if (warmupUpdates > 0) {
    text += (text.empty() ? "" : " ") + ("warmup_updates=" + std::to_string(warmupUpdates));
  }
  return text;
}

}  // namespace psd
