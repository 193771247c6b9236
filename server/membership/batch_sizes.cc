#include "server/membership/batch_sizes.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace psd {
namespace {

// Reports are clamped to this range, so that sums of speeds stay finite.
constexpr double kSampleSecondsMin = 1e-9, kSampleSecondsMax = 1e6;

Error refused(const std::string& why) { return {ErrorCode::invalidArgument, why}; }

}  // namespace

Status BatchSizes::report(SessionId session, Pace pace) {
  if (!std::isfinite(pace.sampleSeconds) || pace.sampleSeconds < 0) {
    return refused("the seconds per sample must be finite and at least 0 (0: unknown), not " +
                   std::to_string(pace.sampleSeconds));
  }
  if (pace.nominal == 0 || pace.most < pace.nominal) {
    return refused("a batch of " + std::to_string(pace.nominal) + " samples, at most " +
                   std::to_string(pace.most) + ", is invalid: 1 <= nominal <= count");
  }
  for (const auto& [other, theirs] : paces_) {
    if (other == session || theirs.nominal == pace.nominal) continue;
    return refused("this trainer's nominal batch has " + std::to_string(pace.nominal) +
                   " samples; those of the others have " + std::to_string(theirs.nominal));
  }
  if (pace.sampleSeconds > 0) {
    pace.sampleSeconds = std::clamp(pace.sampleSeconds, kSampleSecondsMin, kSampleSecondsMax);
  }
  paces_[session] = pace;
  return {};
}

uint32_t BatchSizes::sizeFor(SessionId session) const {
  const auto found = paces_.find(session);
  if (found == paces_.end()) return 0;
  const Pace& pace = found->second;
  if (pace.sampleSeconds == 0) return pace.nominal;
  const double samples = std::round(stepSeconds() / pace.sampleSeconds);
  return static_cast<uint32_t>(std::clamp(samples, 1.0, static_cast<double>(pace.most)));
}

uint32_t BatchSizes::nominalOf(SessionId session) const {
  const auto found = paces_.find(session);
  return found == paces_.end() ? 0 : found->second.nominal;
}

double BatchSizes::stepSeconds() const {
  // Samples beyond a trainer's maximum go to the others, which may take more of them to their maximum: the
  // time rises until no further trainer reaches it.
  for (double seconds = 0;;) {
    double samples = 0, speed = 0;  // of the trainers below their maximum
    for (const auto& [session, pace] : paces_) {
      if (pace.sampleSeconds == 0) continue;
      samples += pace.nominal;
      if (seconds > pace.most * pace.sampleSeconds) {
        samples -= pace.most;
      } else {
        speed += 1 / pace.sampleSeconds;
      }
    }
    const double next = speed > 0 ? samples / speed : seconds;
    if (next <= seconds) return seconds;
    seconds = next;
  }
}

}  // namespace psd
