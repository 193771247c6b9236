#include "server/replica/standby_state.h"

#include <algorithm>
#include <utility>

namespace psd {

void StandbyState::start(const ClusterView& view, uint64_t number, SavedFolder folder, TimePoint now,
                         ReplicaActions& out) {
  number_ = number;
  folder_ = std::move(folder);
  adopt(view, now, out);
}

void StandbyState::primaryHeard(TimePoint now) {
  if (deciding_) return;  // sent before the connection was closed
  heard_ = now;
  refuses_ = false;
}

void StandbyState::recordsHeld(uint64_t number, TimePoint now) {
  if (deciding_ || !followed_) return;
  primaryHeard(now);
  held_ = std::max(held_.value_or(number), number);
}

void StandbyState::primaryConnectionGone(TimePoint now, ReplicaActions& out) {
  if (leavesBy_) return talk_.read(out);  // it may have been removed, as requested
  if (!inSync()) talk_.readLater(now);
}

void StandbyState::peerDead(DaemonId id, TimePoint now, ReplicaActions& out) {
  if (!followed_ || followed_->primary != id) return;
  refuses_ = true;
  settle(now, out);
}

void StandbyState::swapAnswered(const ClusterView& view, TimePoint now, ReplicaActions& out) {
  talk_.swapAnswered();
  adopt(view, now, out);
}

void StandbyState::documentRead(const ClusterView& view, TimePoint now, ReplicaActions& out) {
  talk_.readAnswered();
  adopt(view, now, out);
}

void StandbyState::readUnknown(TimePoint now, ReplicaActions& out) {
  talk_.readUnknown(now);
  if (!deciding_) return;
  // The engine is unreachable. The primary may not be, and its pushes wait for this standby.
  deciding_ = false;
  follow(now, out);
}

void StandbyState::tick(TimePoint now, ReplicaActions& out) {
  const auto gap = now - ticked_;
  ticked_ = now;
  if (gap > rules_.standstill()) heard_ = std::min(now, heard_ + gap);
  talk_.tick(now, out);
  if (leavesBy_ && now >= *leavesBy_) return end(out);
  settle(now, out);
}

void StandbyState::claim(const ClusterView& view, TimePoint now, ReplicaActions& out) {
  if (view.vacant() && (!view.ended || (named_ && !view.ended->guessed()))) return;
  // A takeover that found no document has come to nothing.
  if (view.primary == me_ || inSync() || (deciding_ && !view.vacant())) return;
  if (!talk_.learn(view, now)) return;
  if (!view.vacant()) vacantSince_.reset();
  if (talk_.busy()) return;
  claimed_ = view;
  if (view.vacant()) {
    begin(out);
  } else {
    takeOver(out);
  }
}

void StandbyState::leave(TimePoint now, ReplicaActions& out) {
  if (leavesBy_) return;
  if (!inSync()) return end(out);
  leavesBy_ = now + rules_.alone;
  out.push_back(replica_action::NotifyLeaving{});
}

bool StandbyState::takes(DaemonId primary, uint64_t term) const {
  return followed_ && !deciding_ && !promoted_ && !over_ && followed_->primary == primary &&
         term <= followed_->term;  // a lower term: the same process, which rewrote the document since
}

void StandbyState::adopt(const ClusterView& view, TimePoint now, ReplicaActions& out) {
  const uint64_t before = plan().revision;
  if (!talk_.learn(view, now)) return;
  if (view.vacant()) {
    if (!vacantSince_ || view.revision > before) vacantSince_ = now;
    if (claimed_ && !claimed_->sameGroup(view)) claimed_.reset();
    if (named_ && view.ended && !view.ended->guessed()) {
      over_ = true;
      out.push_back(replica_action::RunOver{});
      return;
    }
    return actWithoutPrimary(now, out);
  }
  vacantSince_.reset();
  if (continuesFolder(view, folder_)) named_ = view;
  if (view.primary == me_) return promote(view, out);
  if (claimed_) {
    if (claimed_->sameGroup(view)) {
      if (!talk_.busy()) takeOver(out);
      return;
    }
    claimed_.reset();  // another daemon has decided meanwhile
  }
  // The primary has rewritten a document that was gone: the records here remain valid.
  if (followed_ && followed_->primary == view.primary) followed_->term = view.term;
  if (followed_ && followed_->primary != view.primary) {
    if (held_) {
      over_ = true;
      out.push_back(replica_action::StepDown{false});
      return;
    }
    followed_.reset();
  }
  if (leavesBy_ && !inSync()) return end(out);
  if (deciding_ && !inSync()) deciding_ = false, followed_.reset();
  if (!followed_) return follow(now, out);
  if (deciding_ && !talk_.busy()) takeOver(out);
}

void StandbyState::promote(const ClusterView& view, ReplicaActions& out) {
  if (followed_ && !deciding_) out.push_back(replica_action::CloseReplication{});
  promoted_ = true;
  out.push_back(replica_action::Promote{view.term});
}

void StandbyState::follow(TimePoint now, ReplicaActions& out) {
  if (!continuesFolder(plan(), folder_)) return;  // an operator decides
  followed_ = named_;
  heard_ = now;
  refuses_ = false;
  out.push_back(replica_action::Follow{named_->primary, named_->term});
}

void StandbyState::actWithoutPrimary(TimePoint now, ReplicaActions& out) {
  if (talk_.busy()) return;
  const auto since = now - *vacantSince_;
  // A document that is gone is rewritten by the daemon that served in it.
  if (named_ && (!silent(now) || since < rules_.absence / 2)) return talk_.readLater(now);
  const std::optional<EndedRun>& run = plan().ended;
  const auto after = run && !named_ ? startDelay(*run, folder_, rules_) : std::nullopt;
  if (claimed_ || (after && since >= *after)) return begin(out);
  const std::optional<EndedRun> ours = lastKnown();
  if (ours && (!run || (run->guessed() && isNewer(*ours, *run)))) {
    return talk_.swap({0, 0, {}, {}, ours}, out);
  }
  if (run) return talk_.readLater(now);
  if (since >= rules_.absence) begin(out);
}

std::optional<EndedRun> StandbyState::lastKnown() const {
  std::optional<EndedRun> known;
  if (named_) known = EndedRun{named_->term, named_->primary, {}, true, DocumentSource::primaryFolder};
  if (!folder_.record || folder_.chosen) return known;
  const EndedRun record = asEndedRun(*folder_.record, me_);
  return known && !isNewer(record, *known) ? known : record;
}

void StandbyState::begin(ReplicaActions& out) {
  const std::optional<EndedRun>& run = plan().ended;
  const uint64_t known = std::max(run ? run->term : 0, folder_.record ? folder_.record->term : 0);
  talk_.swap({0, known + 1, me_, std::nullopt}, out);
}

void StandbyState::settle(TimePoint now, ReplicaActions& out) {
  if (vacantSince_) return actWithoutPrimary(now, out);
  if (!followed_ && !claimed_ && !plan().vacant()) return talk_.readLater(now);
  if (!followed_ || claimed_ || !silent(now)) return;
  if (!inSync()) return talk_.readLater(now);  // the document may name another primary or this daemon by now
  if (deciding_ || talk_.busy()) return;
  deciding_ = true;
  out.push_back(replica_action::CloseReplication{});
  takeOver(out);
}

void StandbyState::takeOver(ReplicaActions& out) { talk_.swap({0, plan().term + 1, me_, std::nullopt}, out); }

void StandbyState::end(ReplicaActions& out) {
  over_ = true;
  out.push_back(replica_action::MayExit{false});
}

std::string StandbyState::checkInvariants() const {
  if (std::string found = talk_.checkInvariants(); !found.empty()) return found;
  if (promoted_ && plan().primary != me_) return "it is promoted, and the document names another primary";
  if (named_ && named_->vacant()) return "the run that it takes part in has no primary";
  if (followed_ && !named_) return "it follows a primary outside the run that it takes part in";
  if (vacantSince_ && !plan().vacant()) return "no daemon serves, and the document names one";
  if (promoted_ || over_) return "";
  if (!plan().vacant() && plan().primary == me_)
    return "the document names it as primary, and it does not serve";
  if (deciding_ && !followed_) return "it takes over from no primary";
  return "";
}

}  // namespace psd
