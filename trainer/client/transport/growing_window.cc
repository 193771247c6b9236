#include "trainer/client/transport/growing_window.h"

#include <algorithm>
#include <cmath>

namespace psd {
namespace {

constexpr double kHeadroom = 2;  // headroom over the bandwidth-delay product
constexpr double kSecondsMin = 1e-9;

}  // namespace

void GrowingWindow::setLimits(uint32_t least, uint32_t most) {
  least_ = least;
  most_ = most;
  slices_ = std::clamp(slices_, least_, most_);
}

GrowingWindow::Sent GrowingWindow::sent(TimePoint now) {
  if (unanswered_ == 0 && newest_.underWay > 0) {
    previous_ = newest_;
    newest_ = {};
  }
  unanswered_++;
  return {now, answered_};
}

void GrowingWindow::answered(const Sent& slice, TimePoint now) {
  unanswered_--;
  answered_++;
  const double seconds = std::max(std::chrono::duration<double>(now - slice.when).count(), kSecondsMin);
  newest_.shortest = std::min(newest_.shortest, seconds);
  // Slices answered during the round trip of this one.
  const double perRoundTrip = static_cast<double>(answered_ - slice.answeredBefore);
  const double shortest = std::min(newest_.shortest, previous_.shortest);
  newest_.underWay = std::max(newest_.underWay, perRoundTrip * shortest / seconds);
  const double wanted = std::ceil(kHeadroom * std::max(newest_.underWay, previous_.underWay));
  slices_ = static_cast<uint32_t>(std::clamp<double>(wanted, least_, most_));
}

}  // namespace psd
