#include "server/policy/measured_grace.h"

#include <algorithm>
#include <cmath>

namespace psd {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr double kMeanGain = 1. / 8, kDeviationGain = 1. / 4;  // weight of the newest sample

}  // namespace

void MeasuredGrace::gradientArrived(SessionId session, TimePoint now) {
  const auto since = missing_.find(session);
  if (since == missing_.end()) return;
  // Rounds never wait beyond the limit, so longer delays carry no information.
  const double took = Seconds(std::min(now - since->second, limit_)).count();
  missing_.erase(since);
  const auto [found, first] = estimates_.try_emplace(session, Estimate{took, took / 2});
  if (first) return;
  Estimate& estimate = found->second;
  estimate.deviation += kDeviationGain * (std::abs(took - estimate.mean) - estimate.deviation);
  estimate.mean += kMeanGain * (took - estimate.mean);
}

void MeasuredGrace::forget(SessionId session) {
  missing_.erase(session);
  estimates_.erase(session);
}

MeasuredGrace::Duration MeasuredGrace::of(SessionId session) const {
  if (estimates_.empty()) return limit_;
  double seconds = 0;
  if (const auto found = estimates_.find(session); found != estimates_.end()) {
    seconds = secondsOf(found->second);
  } else {
    for (const auto& [other, estimate] : estimates_) seconds = std::max(seconds, secondsOf(estimate));
  }
  return std::min(std::chrono::ceil<Duration>(Seconds(seconds)), limit_);
}

}  // namespace psd
