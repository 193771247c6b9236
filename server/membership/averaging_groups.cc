#include "server/membership/averaging_groups.h"

#include <algorithm>

namespace psd {

bool AveragingGroups::isMember(SessionId session) const {
  return std::ranges::any_of(members_, [&](const auto& member) { return member.first == session; });
}

void AveragingGroups::leave(SessionId session) {
  live_.erase(session);
  waiting_.erase(session);
  if (waiting_.empty()) {
    since_.reset();
    hurried_.reset();
  }
}

bool AveragingGroups::wait(SessionId session, const Waiter& waiter, TimePoint now) {
  const auto live = live_.find(session);
  if (live == live_.end()) return false;
  waiting_[session] = {live->second, waiter.host, waiter.port};
  if (!since_) since_ = now;
  const bool goesOn = generation_ == 0 ? waiter.after != 0 : isMember(session);
  if (!hurried_ && goesOn) hurried_ = now;
  return true;
}

bool AveragingGroups::due(TimePoint now) const {
  if (waiting_.empty()) return false;
  if (generation_ == 0 && !hurried_ && waiting_.size() < startTrainers_) return false;
  return waiting_.size() == live_.size() || (hurried_ && now >= *hurried_ + patience_);
}

std::vector<std::pair<SessionId, AveragingMember>> AveragingGroups::form(Version version) {
  if (generation_ != 0) reached_.emplace_back(generation_, version);
  if (reached_.size() > kKept) reached_.pop_front();
  members_.assign(waiting_.begin(), waiting_.end());
  std::ranges::stable_sort(members_, {}, [](const auto& member) { return member.second.rank; });
  waiting_.clear();
  since_.reset();
  hurried_.reset();
  generation_ = next_++;
  return members_;
}

Version AveragingGroups::reachedBy(uint64_t generation) const {
  const auto found = std::ranges::find(reached_, generation, &std::pair<uint64_t, Version>::first);
  return found == reached_.end() ? Version{} : found->second;
}

std::vector<SessionId> AveragingGroups::waiters() const {
  std::vector<SessionId> sessions;
  for (const auto& [session, member] : waiting_) sessions.push_back(session);
  return sessions;
}

std::vector<SessionId> AveragingGroups::awaited() const {
  std::vector<SessionId> sessions;
  if (waiting_.empty()) return sessions;
  for (const auto& [session, rank] : live_) {
    if (!waiting_.contains(session)) sessions.push_back(session);
  }
  return sessions;
}

uint32_t AveragingGroups::joinsNeeded() const {
  if (waiting_.empty() || generation_ != 0 || live_.size() >= startTrainers_) return 0;
  return startTrainers_ - static_cast<uint32_t>(live_.size());
}

}  // namespace psd
