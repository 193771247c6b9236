#include "trainer/task/score.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "common/text/text.h"

namespace psd {
namespace {

constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();

/// Share of all pairs in which the score with label 1 exceeds the one with label 0; ties count half.
double areaUnderCurve(std::vector<float> negatives, std::vector<float> positives) {
  const auto isNan = [](float score) { return std::isnan(score); };
  if (negatives.empty() || positives.empty() || std::ranges::any_of(negatives, isNan) ||
      std::ranges::any_of(positives, isNan)) {
    return kNothing;
  }
  std::ranges::sort(negatives);
  std::ranges::sort(positives);
  double wins = 0;
  size_t below = 0, notAbove = 0;  // negatives below, or not above, the positive
  for (const float positive : positives) {
    while (below < negatives.size() && negatives[below] < positive) ++below;
    while (notAbove < negatives.size() && negatives[notAbove] <= positive) ++notAbove;
    wins += (static_cast<double>(below) + static_cast<double>(notAbove)) / 2;
  }
  return wins / static_cast<double>(negatives.size()) / static_cast<double>(positives.size());
}

}  // namespace

Metric& Metric::operator+=(const Metric& other) {
  sum += other.sum;
  weight += other.weight;
  negatives.insert(negatives.end(), other.negatives.begin(), other.negatives.end());
  positives.insert(positives.end(), other.positives.begin(), other.positives.end());
  return *this;
}

double Metric::value() const {
  if (kind == MetricKind::auc) return areaUnderCurve(negatives, positives);
  if (kind == MetricKind::count) return sum;
  if (!(weight > 0)) return kNothing;
  const double mean = sum / weight;
  if (kind == MetricKind::exponential) return std::exp(mean);
  return kind == MetricKind::root ? std::sqrt(mean) : mean;
}

std::string Metric::toString() const {
  if (kind == MetricKind::share) return fmt::format("{} {:.2f} %", name, 100 * value());
  if (kind == MetricKind::count) return fmt::format("{} {:.0f}", name, value());
  return fmt::format("{} {:.{}f}", name, value(), kind == MetricKind::exponential ? 2 : 4);
}

double Score::value(std::string_view name) const {
  for (const Metric& metric : metrics) {
    if (metric.name == name) return metric.value();
  }
  return kNothing;
}

Score& Score::operator+=(const Score& other) {
  samples += other.samples;
  for (const Metric& theirs : other.metrics) {
    const auto mine = std::find_if(metrics.begin(), metrics.end(),
                                   [&](const Metric& each) { return each.name == theirs.name; });
    if (mine == metrics.end()) {
      metrics.push_back(theirs);
    } else {
      *mine += theirs;
    }
  }
  return *this;
}

std::string Score::toString() const {
  return joined(metrics, ", ", [](const Metric& metric) { return metric.toString(); });
}

}  // namespace psd
