#include "trainer/lab/virtual_paces.h"

#include <chrono>

namespace psd {

void VirtualPaces::initialize(const JoinInfo& joined) {
  if (paces_ || !joined.local.endsEarly || joined.policy != "async_diloco") return;
  paces_.emplace(joined.local.period);
}

bool VirtualPaces::due(Rank rank) const {
  const auto due = paces_->dueAt(sessionOf(rank));
  return due && now() >= *due;
}

LearnerPaces::TimePoint VirtualPaces::now() const {
  const std::chrono::duration<double> sinceStart(turns_.now());
  return LearnerPaces::TimePoint() +
         std::chrono::duration_cast<LearnerPaces::TimePoint::duration>(sinceStart);
}

}  // namespace psd
