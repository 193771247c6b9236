#include "common/types/learner_paces.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace psd {
namespace {

using Seconds = std::chrono::duration<double>;

// Keeps sums of times within the range of the clock.
constexpr double kSecondsMin = 1e-6, kSecondsMax = 1e7;

LearnerPaces::TimePoint after(LearnerPaces::TimePoint begun, double seconds) {
  const Seconds bounded(std::clamp(seconds, 0.0, kSecondsMax));
  return begun + std::chrono::duration_cast<LearnerPaces::TimePoint::duration>(bounded);
}

}  // namespace

void LearnerPaces::pushes(SessionId session, uint32_t steps, TimePoint now) {
  const auto found = learners_.find(session);
  if (found == learners_.end() || !found->second.begun || steps == 0) return;
  const double seconds = Seconds(now - *found->second.begun).count();
  found->second.begun.reset();
  if (!std::exchange(found->second.measured, true)) return;
  found->second.speed = steps / std::clamp(seconds, kSecondsMin, kSecondsMax);
  findFastest();
}

void LearnerPaces::leave(SessionId session) {
  learners_.erase(session);
  findFastest();
}

void LearnerPaces::findFastest() {
  fastest_ = 0;
  for (const auto& [session, learner] : learners_) fastest_ = std::max(fastest_, learner.speed);
}

uint64_t LearnerPaces::stepsOf(SessionId session) const {
  const auto found = learners_.find(session);
  if (found == learners_.end() || found->second.speed == 0) return period_;
  // Rounding of the quotient must not cost an equally fast learner a step.
  const double steps = static_cast<double>(period_) * (found->second.speed / fastest_);
  return std::clamp<uint64_t>(static_cast<uint64_t>(steps * (1 + 1e-12)), 1, period_);
}

std::optional<LearnerPaces::TimePoint> LearnerPaces::dueAt(SessionId session) const {
  const auto found = learners_.find(session);
  if (found == learners_.end() || !found->second.begun) return {};
  const double own = found->second.speed;
  if (fastest_ == 0) return {};
  if (own == 0) return after(*found->second.begun, static_cast<double>(period_) / fastest_);
  const uint64_t steps = stepsOf(session);
  if (steps == period_) return {};
  return after(*found->second.begun, (static_cast<double>(steps) - 0.5) / own);
}

}  // namespace psd
