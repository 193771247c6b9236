#include "server/replica/standby_state.h"

#include <algorithm>
#include <utility>

namespace psd {

void StandbyState::start(const PlanView& view, uint64_t number, SavedFolder folder, TimePoint now,
                         GroupActions& out) {
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

void StandbyState::primaryConnectionGone(TimePoint now, GroupActions& out) {
  if (leavesBy_) return talk_.read(out);  // it may have been removed, as requested
  if (!inSync()) talk_.readLater(now);
}

void StandbyState::peerRefuses(DaemonId id, TimePoint now, GroupActions& out) {
  if (!followed_ || followed_->primary != id) return;
  refuses_ = true;
  settle(now, out);
}

void StandbyState::swapAnswered(const PlanView& view, TimePoint now, GroupActions& out) {
  talk_.swapAnswered();
  adopt(view, now, out);
}

void StandbyState::planRead(const PlanView& view, TimePoint now, GroupActions& out) {
  talk_.readAnswered();
  adopt(view, now, out);
}

void StandbyState::readUnknown(TimePoint now, GroupActions& out) {
  talk_.readUnknown(now);
  if (!deciding_) return;
  // The engine is unreachable. The primary may not be, and its pushes wait for this standby.
  deciding_ = false;
  follow(now, out);
}

void StandbyState::tick(TimePoint now, GroupActions& out) {
  const auto gap = now - ticked_;
  ticked_ = now;
  if (gap > rules_.standstill()) heard_ = std::min(now, heard_ + gap);
  talk_.tick(now, out);
  if (leavesBy_ && now >= *leavesBy_) return end(out);
  settle(now, out);
}

void StandbyState::claim(const PlanView& view, TimePoint now, GroupActions& out) {
  if (view.vacant() && (!view.ended || (named_ && !view.ended->guessed()))) return;
  if (view.primary == me_ || inSync() || deciding_) return;
  if (!talk_.learn(view, now) || talk_.busy()) return;
  claimed_ = view;
  if (view.vacant()) {
    begin(out);
  } else {
    takeOver(out);
  }
}

void StandbyState::leave(TimePoint now, GroupActions& out) {
  if (leavesBy_) return;
  if (!inSync()) return end(out);
  leavesBy_ = now + rules_.alone;
  out.push_back(group_action::TellLeaving{});
}

bool StandbyState::takes(DaemonId primary, uint64_t epoch) const {
  return followed_ && !deciding_ && !promoted_ && !over_ && followed_->primary == primary &&
         epoch <= followed_->epoch;  // a lower term: the same process, which rewrote the document since
}

void StandbyState::adopt(const PlanView& view, TimePoint now, GroupActions& out) {
  const uint64_t before = plan().revision;
  if (!talk_.learn(view, now)) return;
  if (view.vacant()) {
    if (!vacantSince_ || view.revision > before) vacantSince_ = now;
    if (claimed_ && !claimed_->sameGroup(view)) claimed_.reset();
    if (named_ && view.ended && !view.ended->guessed()) {
      over_ = true;
      out.push_back(group_action::RunOver{});
      return;
    }
    return settleVacant(now, out);
  }
  vacantSince_.reset();
  if (leadsOn(view, folder_)) named_ = view;
  if (view.primary == me_) return promote(view, out);
  if (claimed_) {
    if (claimed_->sameGroup(view)) {
      if (!talk_.busy()) takeOver(out);
      return;
    }
    claimed_.reset();  // another daemon has decided meanwhile
  }
  // The primary has rewritten a document that was gone: the records here remain valid.
  if (followed_ && followed_->primary == view.primary) followed_->epoch = view.epoch;
  if (followed_ && followed_->primary != view.primary) {
    if (held_) {
      over_ = true;
      out.push_back(group_action::StepDown{false});
      return;
    }
    followed_.reset();
  }
  if (leavesBy_ && !inSync()) return end(out);
  if (deciding_ && !inSync()) deciding_ = false, followed_.reset();
  if (!followed_) return follow(now, out);
  if (deciding_ && !talk_.busy()) takeOver(out);
}

void StandbyState::promote(const PlanView& view, GroupActions& out) {
  if (followed_ && !deciding_) out.push_back(group_action::CloseReplication{});
  promoted_ = true;
  out.push_back(group_action::Promote{view.epoch});
}

void StandbyState::follow(TimePoint now, GroupActions& out) {
  if (!leadsOn(plan(), folder_)) return;  // an operator decides
  followed_ = named_;
  heard_ = now;
  refuses_ = false;
  out.push_back(group_action::Follow{named_->primary, named_->epoch});
}

void StandbyState::settleVacant(TimePoint now, GroupActions& out) {
  if (talk_.busy()) return;
  const auto since = now - *vacantSince_;
  // A document that is gone is rewritten by the daemon that served in it.
  if (named_ && (!silent(now) || since < rules_.absence / 2)) return talk_.readLater(now);
  const std::optional<EndedRun>& run = plan().ended;
  const auto after = run && !named_ ? beginsAfter(*run, folder_, rules_) : std::nullopt;
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
  if (named_) known = EndedRun{named_->epoch, named_->primary, {}, true, PlanSource::primaryFolder};
  if (!folder_.record || folder_.chosen) return known;
  const EndedRun record = asEndedRun(*folder_.record, me_);
  return known && !isNewer(record, *known) ? known : record;
}

void StandbyState::begin(GroupActions& out) {
  const std::optional<EndedRun>& run = plan().ended;
  const uint64_t known = std::max(run ? run->epoch : 0, folder_.record ? folder_.record->epoch : 0);
  talk_.swap({0, known + 1, me_, std::nullopt}, out);
}

void StandbyState::settle(TimePoint now, GroupActions& out) {
  if (vacantSince_) return settleVacant(now, out);
  if (!followed_ && !claimed_ && !plan().vacant()) return talk_.readLater(now);
  if (!followed_ || claimed_ || !silent(now)) return;
  if (!inSync()) return talk_.readLater(now);  // the document may name another primary or this daemon by now
  if (deciding_ || talk_.busy()) return;
  deciding_ = true;
  out.push_back(group_action::CloseReplication{});
  takeOver(out);
}

void StandbyState::takeOver(GroupActions& out) { talk_.swap({0, plan().epoch + 1, me_, std::nullopt}, out); }

void StandbyState::end(GroupActions& out) {
  over_ = true;
  out.push_back(group_action::Ended{false});
}

}  // namespace psd
