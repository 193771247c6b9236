#include "server/membership/leases.h"

#include <algorithm>

#include "common/types/invariant_check.h"

namespace psd {
namespace {

constexpr Leases::Milliseconds kIntervalMin{5}, kIntervalMax{250};
constexpr int kLooksPerTerm = 8;
constexpr int kStandstill = 4;  // intervals

}  // namespace

Leases::Milliseconds Leases::interval() const {
  const Milliseconds shorter = terms_.grace.count() > 0 ? std::min(terms_.lease, terms_.grace) : terms_.lease;
  return std::clamp(shorter / kLooksPerTerm, kIntervalMin, kIntervalMax);
}

void Leases::advance(Milliseconds now) {
  const InvariantCheck check(*this);
  if (begun_) awake_ += std::clamp(now - last_, Milliseconds(0), kStandstill * interval());
  begun_ = true;
  last_ = now;
}

void Leases::grant(SessionId session) {
  const InvariantCheck check(*this);
  held_[session] = Term{awake_ + terms_.lease, true};
}

void Leases::disconnected(SessionId session) {
  const InvariantCheck check(*this);
  auto term = held_.find(session);
  if (term == held_.end() || !term->second.connected) return;
  term->second = Term{awake_ + terms_.grace, false};
}

bool Leases::connected(SessionId session) const {
  auto term = held_.find(session);
  return term != held_.end() && term->second.connected;
}

Leases::Milliseconds Leases::left(SessionId session) const {
  auto term = held_.find(session);
  if (term == held_.end()) return Milliseconds(0);
  return std::max(term->second.ends - awake_, Milliseconds(0));
}

std::vector<SessionId> Leases::expired() const {
  std::vector<SessionId> gone;
  for (const auto& [session, term] : held_) {
    if (term.ends <= awake_) gone.push_back(session);
  }
  return gone;
}

std::string Leases::checkInvariants() const {
  for (const auto& [session, term] : held_) {
    if (term.ends > awake_ + (term.connected ? terms_.lease : terms_.grace)) {
      return "a trainer expires later than a lease or a grace from now";
    }
  }
  if (!begun_ && awake_.count() != 0) return "time has passed before it was set";
  return "";
}

}  // namespace psd
