#include "server/replica/primary_state.h"

#include <algorithm>
#include <utility>

namespace psd {

PrimaryState::PrimaryState(DaemonId me, ReplicationRules rules, DocumentRequests talk, uint64_t number,
                           TimePoint now)
    : me_(me),
      rules_(rules),
      talk_(std::move(talk)),
      own_(talk_.known()),
      appended_(number),
      released_(number),
      ticked_(now),
      tickAppended_(number),
      closeBehind_(number) {}

std::optional<DaemonId> PrimaryState::standby() const {
  return standby_ && standby_->connected ? std::optional(standby_->id) : std::nullopt;
}

void PrimaryState::recordAppended(uint64_t number, TimePoint now, ReplicaActions& out) {
  appended_ = std::max(appended_, number);
  settle(now, out);
}

void PrimaryState::standbySubscribed(DaemonId id, TimePoint now, ReplicaActions& out) {
  if (!is(id)) {
    // The standby that pushes wait for may be in the document: it is not replaced before it is removed. Nor
    // is one that is catching up, or two daemons would displace each other forever.
    const bool taken = waiting_ || (standby_ && standby_->connected && !gone(now, rules_.silence));
    if (taken || id == me_) {
      out.push_back(replica_action::DropStandby{id});
      return;
    }
    if (standby_ && standby_->connected) drop(out);
    standby_ = Standby{id, now};
  }
  standby_->connected = true;
  standby_->heard = now;
  standby_->refuses = standby_->leaves = standby_->told = false;
  if (plan().standby == id) {
    standby_->told = true;
    out.push_back(replica_action::NotifyInSync{id, plan()});
  }
  settle(now, out);
}

void PrimaryState::standbyHolds(DaemonId id, uint64_t number, TimePoint now, ReplicaActions& out) {
  if (!is(id) || !standby_->connected) return;
  if (number > appended_) return drop(out);  // no follower can hold a record that does not exist
  standby_->heard = now;
  standby_->held = std::max(standby_->held, number);
  if (!standby_->wholeSince) standby_->wholeSince = now;
  settle(now, out);
}

void PrimaryState::standbyHeard(DaemonId id, TimePoint now) {
  if (is(id) && standby_->connected) standby_->heard = now;
}

void PrimaryState::standbyConnectionGone(DaemonId id, TimePoint now, ReplicaActions& out) {
  if (!is(id)) return;
  standby_->connected = false;
  settle(now, out);
}

void PrimaryState::standbyLeaves(DaemonId id, TimePoint now, ReplicaActions& out) {
  if (!is(id)) return;
  standby_->leaves = true;
  settle(now, out);
}

void PrimaryState::peerDead(DaemonId id, TimePoint now, ReplicaActions& out) {
  if (!is(id)) return;
  standby_->connected = false;
  standby_->refuses = true;
  settle(now, out);
}

void PrimaryState::swapAnswered(const ClusterView& view, TimePoint now, ReplicaActions& out) {
  talk_.swapAnswered();
  adopt(view, now, out);
}

void PrimaryState::documentRead(const ClusterView& view, TimePoint now, ReplicaActions& out) {
  talk_.readAnswered();
  adopt(view, now, out);
}

void PrimaryState::tick(TimePoint now, ReplicaActions& out) {
  const auto gap = now - ticked_;
  ticked_ = now;
  if (gap > rules_.standstill() && standby_) standby_->heard = std::min(now, standby_->heard + gap);
  closeBehind_ = std::exchange(tickAppended_, appended_);
  talk_.tick(now, out);
  settle(now, out);
}

void PrimaryState::handOver(TimePoint now, ReplicaActions& out) {
  if (gates_ != Gates::open) return;
  if (!mayHandOver(now)) {
    out.push_back(replica_action::OpenGates{});
    return;
  }
  gates_ = Gates::closing;
  handOverSince_ = now;
  out.push_back(replica_action::CloseGates{});
}

void PrimaryState::gatesClosed(TimePoint now, ReplicaActions& out) {
  if (gates_ != Gates::closing) return;
  gates_ = Gates::closed;
  settle(now, out);
}

void PrimaryState::leave(TimePoint now, ReplicaActions& out) {
  leaving_ = true;
  if (mayHandOver(now)) return handOver(now, out);
  over_ = true;
  out.push_back(replica_action::MayExit{true});
}

/// Whether the document names the standby, or a pending swap may still add it.
bool PrimaryState::mayBeNamed() const {
  return standby_ && (plan().standby == standby_->id || talk_.open(addedAt_));
}

bool PrimaryState::gone(TimePoint now, std::chrono::nanoseconds silence) const {
  return standby_->refuses || standby_->leaves || now - standby_->heard > silence;
}

bool PrimaryState::mayHandOver(TimePoint now) const {
  return standby_ && plan().standby == standby_->id && standby_->connected && !gone(now, rules_.alone);
}

void PrimaryState::adopt(const ClusterView& view, TimePoint now, ReplicaActions& out) {
  if (!talk_.learn(view, now)) return settle(now, out);
  if (view.ended && !view.ended->guessed()) return fenced(view, out);
  if (view.vacant()) {
    if (!vacantSince_) vacantSince_ = now;
    if (standby_) standby_->told = false;
  } else {
    if (view.primary != me_) return fenced(view, out);
    vacantSince_.reset();
    if (view.term != own_.term) out.push_back(replica_action::TermRenewed{view.term});
    own_ = view;
    if (view.standby) {
      if (!is(*view.standby)) {
        if (standby_ && standby_->connected) drop(out);
        standby_ = Standby{*view.standby, now};
      }
      waiting_ = true;
      if (standby_->connected && !std::exchange(standby_->told, true)) {
        out.push_back(replica_action::NotifyInSync{standby_->id, view});
      }
    } else if (!mayBeNamed()) {
      waiting_ = false;  // removed, or never named: no other daemon can be promoted
      if (standby_) standby_->told = false;
    }
  }
  settle(now, out);
}

void PrimaryState::fenced(const ClusterView& view, ReplicaActions& out) {
  over_ = true;
  const bool handedOver = gates_ == Gates::closed && is(view.primary) && standby_->held == appended_;
  if (handedOver) out.push_back(replica_action::NotifyTakeover{view.primary, view});
  if (leaving_) {
    out.push_back(replica_action::MayExit{false});
  } else {
    out.push_back(replica_action::StepDown{handedOver});
  }
}

void PrimaryState::settle(TimePoint now, ReplicaActions& out) {
  const bool mayBe =
      plan().vacant() || mayBeNamed();  // the standby may have taken over before the document was lost
  if (waiting_ && !mayBe && (!standby_->connected || gone(now, rules_.silence))) waiting_ = false;
  release(out);
  // A lagging follower delays pushes whether or not the document names it.
  if (!waiting_ && standby_ && standby_->connected && gone(now, rules_.alone)) drop(out);
  if (gates_ != Gates::open) actForHandover(now, out);
  if (over_ || talk_.busy()) return;
  if (plan().vacant()) return renew(now, out);
  if (waiting_ && mayBeNamed() && gone(now, rules_.alone)) return remove(out);
  if (!plan().standby && gates_ == Gates::open && !leaving_) add(now, out);
}

void PrimaryState::release(ReplicaActions& out) {
  const uint64_t upTo =
      waiting_ && rules_.wait == ReplicationRules::Wait::standby ? standby_->held : appended_;
  if (upTo <= released_) return;
  released_ = upTo;
  out.push_back(replica_action::AnswerUpTo{upTo});
}

void PrimaryState::add(TimePoint now, ReplicaActions& out) {
  if (!standby_ || !standby_->connected || !standby_->wholeSince || gone(now, rules_.silence)) return;
  if (!waiting_) {
    // Pushes pause while it receives the rest, so the rest should be no more than a beat or two of pushes. If
    // pushes are as fast as the follower, it never gets that close, and lag_bytes bounds the rest.
    if (standby_->held < closeBehind_ && now - *standby_->wholeSince <= rules_.alone) return;
    waiting_ = true;
    waitFrom_ = appended_;
  }
  if (standby_->held < waitFrom_) return;
  addedAt_ = plan().revision;
  talk_.swap(viewWith(standby_->id), out);
}

void PrimaryState::remove(ReplicaActions& out) {
  if (standby_->connected && !standby_->leaves) drop(out);
  talk_.swap(viewWith(std::nullopt), out);
}

void PrimaryState::renew(TimePoint now, ReplicaActions& out) {
  const bool alone = !waiting_ || !standby_->connected || gone(now, rules_.silence);
  // A silent standby may just have taken over: then it rewrites the document. A daemon that knows of none
  // writes one after `absence`, which must not be the first.
  if (waiting_ && alone && now - *vacantSince_ < rules_.absence / 2) return;
  const bool keeps = !alone && own_.standby == standby_->id;
  if (keeps) addedAt_ = plan().revision;
  // The next term may have been that of such a standby.
  talk_.swap({0, own_.term + 2, me_, keeps ? own_.standby : std::nullopt}, out);
}

void PrimaryState::actForHandover(TimePoint now, ReplicaActions& out) {
  // A standby that learns of its promotion first disconnects first: wait for the answer to the swap.
  const bool inVain = !mayHandOver(now) && !talk_.busy();
  if (inVain || now - handOverSince_ > rules_.alone) {
    gates_ = Gates::open;
    if (leaving_) {
      over_ = true;
      out.push_back(replica_action::MayExit{true});
    } else {
      out.push_back(replica_action::OpenGates{});
    }
    return;
  }
  if (gates_ != Gates::closed || standby_->held != appended_ || talk_.busy()) return;
  ClusterView wanted = plan();
  wanted.term++;
  wanted.primary = standby_->id;
  wanted.standby.reset();
  talk_.swap(wanted, out);
}

void PrimaryState::drop(ReplicaActions& out) {
  standby_->connected = false;
  out.push_back(replica_action::DropStandby{standby_->id});
}

ClusterView PrimaryState::viewWith(std::optional<DaemonId> standby) const {
  ClusterView wanted = plan();
  wanted.standby = standby;
  return wanted;
}

std::string PrimaryState::checkInvariants() const {
  if (std::string found = talk_.checkInvariants(); !found.empty()) return found;
  if (released_ > appended_) return "a push is answered whose record does not exist";
  if (waitFrom_ > appended_ || tickAppended_ > appended_ || closeBehind_ > tickAppended_) {
    return "a record counts as appended that does not exist";
  }
  if (standby_ && standby_->held > appended_) return "the standby holds a record that does not exist";
  if (waiting_ && !standby_) return "pushes wait for a standby that does not exist";
  if (own_.primary != me_) return "the document that it serves by names another primary";
  if (over_) return "";
  if (!plan().vacant() && plan().primary != me_) return "it serves, and the document names another primary";
  if (plan().standby && (!standby_ || plan().standby != standby_->id)) {
    return "the document names another standby";
  }
  if (mayBeNamed() && !waiting_) return "pushes do not wait for a standby that may take over";
  const bool alone = !waiting_ || rules_.wait != ReplicationRules::Wait::standby;
  if (alone && released_ != appended_) return "a push waits for no daemon";
  if (gates_ != Gates::open && !standby_) return "the gates are closed for no standby";
  return "";
}

}  // namespace psd
