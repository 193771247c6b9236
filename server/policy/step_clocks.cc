#include "server/policy/step_clocks.h"

#include "common/types/invariant_check.h"

namespace psd {

std::optional<uint64_t> StepClocks::clock(SessionId session) const {
  auto found = clocks_.find(session);
  if (found == clocks_.end()) return {};
  return found->second;
}

void StepClocks::join(SessionId session) {
  const InvariantCheck check(*this);
  if (clocks_.try_emplace(session, slowest_).second) sorted_.insert(slowest_);
}

StepClocks::Released StepClocks::leave(SessionId session) {
  const InvariantCheck check(*this);
  auto found = clocks_.find(session);
  if (found == clocks_.end()) return {};
  sorted_.erase(sorted_.find(found->second));
  clocks_.erase(found);
  waiting_.erase(session);
  return release();
}

StepClocks::Released StepClocks::advance(SessionId session) {
  const InvariantCheck check(*this);
  auto found = clocks_.find(session);
  if (found == clocks_.end()) return {};
  sorted_.erase(sorted_.find(found->second));
  sorted_.insert(++found->second);
  return release();
}

bool StepClocks::read(SessionId session, TimePoint now) {
  const InvariantCheck check(*this);
  auto found = clocks_.find(session);
  if (found == clocks_.end() || within(found->second)) return true;
  waiting_.try_emplace(session, now);
  return false;
}

std::vector<StepClocks::Wait> StepClocks::waits() const {
  std::vector<SessionId> last;
  for (const auto& [session, clock] : clocks_) {
    if (clock == slowest_) last.push_back(session);
  }
  std::vector<Wait> found;
  for (const auto& [session, since] : waiting_) {
    found.push_back({session, since, clocks_.at(session) - slowest_, last});
  }
  return found;
}

StepClocks::Released StepClocks::release() {
  if (!sorted_.empty()) slowest_ = *sorted_.begin();
  Released released;
  std::erase_if(waiting_, [&](const auto& waiter) {
    const bool may = within(clocks_.at(waiter.first));
    if (may) released.push_back(waiter.first);
    return may;
  });
  return released;
}

std::string StepClocks::checkInvariants() const {
  std::multiset<uint64_t> values;
  for (const auto& [session, clock] : clocks_) values.insert(clock);
  if (values != sorted_) return "the sorted clocks are not the trainers' clocks";
  if (!sorted_.empty() && *sorted_.begin() != slowest_) return "the slowest clock is not the least one";
  for (const auto& [session, since] : waiting_) {
    const auto found = clocks_.find(session);
    if (found == clocks_.end()) return "a trainer waits that is not joined";
    if (within(found->second)) return "a trainer waits that may read";
  }
  return "";
}

}  // namespace psd
