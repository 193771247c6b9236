#include "server/http/history.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace psd {
namespace {

constexpr float kNothing = std::numeric_limits<float>::quiet_NaN();

/// The values added to a histogram between two readings.
HistogramValue since(const HistogramValue& before, const HistogramValue& now) {
  HistogramValue taken = now;
  taken.count = 0;
  for (size_t i = 0; i < taken.buckets.size(); i++) {
    const uint64_t old = i < before.buckets.size() ? before.buckets[i].count : 0;
    taken.buckets[i].count -= std::min(old, taken.buckets[i].count);
    taken.count += taken.buckets[i].count;
  }
  return taken;
}

float quantileOf(const HistogramValue& taken, double share) {
  return taken.count == 0 ? kNothing : static_cast<float>(taken.quantile(share));
}

float largestRate(const DaemonStatus& status) {
  float largest = kNothing;
  for (const LearningRateStatus& each : status.learningRates)
    largest = std::fmax(largest, static_cast<float>(each.rate));
  return largest;
}

}  // namespace

double History::samplesBetween(const Seen& before, const DaemonStatus& now) {
  double samples = 0;
  for (const TrainerStatus& trainer : now.trainers) {
    const auto old = before.trainers.find(trainer.rank);
    if (old == before.trainers.end() || old->second.process != trainer.process) continue;
    if (trainer.step <= old->second.step) continue;
    samples += static_cast<double>(trainer.step - old->second.step) * static_cast<double>(trainer.batch);
  }
  return samples;
}

History::Values History::valuesOf(const Seen& before, const DaemonStatus& now, double seconds) {
  const auto& metrics = daemonMetrics();
  const auto rate = [&](const Metric<Counter>& counter) {
    const uint64_t old = before.counters[counter], value = now.counters[counter];
    return static_cast<float>(static_cast<double>(value - std::min(old, value)) / seconds);
  };
  const HistogramValue staleness = since(before.staleness, now.histograms[metrics.staleness]);
  const HistogramValue apply = since(before.apply, now.histograms[metrics.applySeconds]);
  const auto waiting = std::count_if(now.trainers.begin(), now.trainers.end(), [](const TrainerStatus& t) {
    return !t.waitsFor.empty() || !t.connected;
  });
  const HeldBytes& held = now.held;
  const uint64_t heldBytes = held.inFlight + held.rings + held.snapshots + held.logPending + held.outgoing +
                             held.staged + held.arriving;
  return {rate(metrics.gradients),       static_cast<float>(samplesBetween(before, now) / seconds),
          rate(metrics.updates),         rate(metrics.pullBytes),
          rate(metrics.pushBytes),       quantileOf(staleness, 0.5),
          quantileOf(staleness, 0.99),   quantileOf(apply, 0.5),
          quantileOf(apply, 0.99),       static_cast<float>(now.trainers.size()),
          static_cast<float>(waiting),   static_cast<float>(now.residentBytes),
          static_cast<float>(heldBytes), largestRate(now)};
}

std::string jsonOfPoint(const History::Point& point) {
  std::string text = fmt::format("[{:.1f}", point.time);
  for (const float value : point.values) {
    text += std::isfinite(value) ? fmt::format(",{:.5g}", value) : ",null";
  }
  return text + "]";
}

void History::Ring::add(const Point& point) {
  if (points_.size() < points_.capacity()) return points_.push_back(point);
  points_[begin_] = point;
  begin_ = (begin_ + 1) % points_.size();
}

std::string History::Ring::json() const {
  std::string text = "[";
  for (size_t i = 0; i < points_.size(); i++) {
    if (i > 0) text += ',';
    text += jsonOfPoint(points_[(begin_ + i) % points_.size()]);
  }
  return text + "]";
}

void History::add(double time, const DaemonStatus& status) {
  if (before_ && time > before_->time) {
    newest_ = Point{time, valuesOf(*before_, status, time - before_->time)};
    seconds_.add(*newest_);
    addToMinute(*newest_);
  }
  const auto& metrics = daemonMetrics();
  before_ = {time,
             status.counters,
             status.histograms[metrics.staleness],
             status.histograms[metrics.applySeconds],
             {}};
  for (const TrainerStatus& trainer : status.trainers) {
    before_->trainers[trainer.rank] = {trainer.process, trainer.step};
  }
}

void History::addToMinute(const Point& point) {
  for (size_t i = 0; i < point.values.size(); i++) {
    if (!std::isfinite(point.values[i])) continue;
    sums_[i] += point.values[i];
    counts_[i]++;
  }
  if (++inMinute_ < kPerMinute) return;
  Point mean{point.time, {}};
  for (size_t i = 0; i < mean.values.size(); i++) {
    mean.values[i] = counts_[i] == 0 ? kNothing : static_cast<float>(sums_[i] / counts_[i]);
  }
  minutes_.add(mean);
  sums_.fill(0);
  counts_.fill(0);
  inMinute_ = 0;
}

std::string History::json(std::string_view reports) const {
  std::string text = "{\"series\":[";
  for (size_t i = 0; i < kSeries.size(); i++) text += fmt::format("{}\"{}\"", i > 0 ? "," : "", kSeries[i]);
  return text + "],\"seconds\":" + seconds_.json() + ",\"minutes\":" + minutes_.json() +
         ",\"reports\":" + std::string(reports) + "}";
}

}  // namespace psd
