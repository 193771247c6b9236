#pragma once

#include <optional>

#include "server/replica/folder_record.h"
#include "server/replica/plan_talk.h"

namespace psd {

/// The rules of a group (group_state.h) as everybody has to keep them who is not its primary: a newcomer that
/// follows the primary without being in the plan, and the standby in sync, which the plan names.
///
/// Pure: no threads, locks or clocks; GroupState owns it. Times must not go back.
class StandbyState {
 public:
  StandbyState(DaemonId me, GroupRules rules, TimePoint now)
      : me_(me), rules_(rules), talk_(rules), heard_(now), ticked_(now) {}

  void start(const PlanView& view, uint64_t number, SavedFolder folder, TimePoint now, GroupActions& out);
  void primaryHeard(TimePoint now);
  void recordsHeld(uint64_t number, TimePoint now);
  void primaryConnectionGone(TimePoint now, GroupActions& out);
  void peerRefuses(DaemonId id, TimePoint now, GroupActions& out);
  void swapAnswered(const PlanView& view, TimePoint now, GroupActions& out);
  void swapUnknown(GroupActions& out) { talk_.swapUnknown(out); }
  void planRead(const PlanView& view, TimePoint now, GroupActions& out);
  void readUnknown(TimePoint now, GroupActions& out);
  void tick(TimePoint now, GroupActions& out);
  void claim(const PlanView& view, TimePoint now, GroupActions& out);
  void leave(TimePoint now, GroupActions& out);

  const PlanView& plan() const { return talk_.known(); }
  const PlanTalk& talk() const { return talk_; }
  /// The plan names it as primary: the last action was Promote.
  bool promoted() const { return promoted_; }
  bool over() const { return over_; }
  bool leaving() const { return leavesBy_.has_value(); }
  const SavedFolder& folder() const { return folder_; }
  /// Whether the plan, as far as it is known here, lets it take over.
  bool inSync() const { return held_ && plan().standby == me_; }
  /// Whether records of this primary and epoch are to be taken.
  bool takes(DaemonId primary, uint64_t epoch) const;
  /// The last record that is here.
  uint64_t number() const { return held_.value_or(number_); }

 private:
  void adopt(const PlanView& view, TimePoint now, GroupActions& out);
  void promote(const PlanView& view, GroupActions& out);
  void follow(TimePoint now, GroupActions& out);
  /// Does what is to be done where there is no plan.
  void settleVacant(TimePoint now, GroupActions& out);
  /// What it knows of the last run, from its folder or from a plan that is gone; nothing: it knows of none.
  std::optional<EndedRun> lastKnown() const;
  /// Begins a run after the plan's run that is over, or the first one.
  void begin(GroupActions& out);
  /// Does what silence or certain death of the primary asks for.
  void settle(TimePoint now, GroupActions& out);
  void takeOver(GroupActions& out);
  void end(GroupActions& out);
  bool silent(TimePoint now) const { return refuses_ || now - heard_ > rules_.silence; }

  const DaemonId me_;
  const GroupRules rules_;
  PlanTalk talk_;
  SavedFolder folder_;
  std::optional<PlanView> named_;  // the newest plan of the run that it takes part in
  std::optional<TimePoint> vacantSince_;
  bool over_ = false;
  bool promoted_ = false;
  uint64_t number_ = 0;               // of the state that the process began with
  std::optional<uint64_t> held_;      // of the followed primary's
  std::optional<PlanView> followed_;  // whose records these are: primary and epoch hold
  bool deciding_ = false;             // it has closed the replication and goes for the primary's place
  TimePoint heard_;
  TimePoint ticked_;
  bool refuses_ = false;
  std::optional<PlanView> claimed_;
  std::optional<TimePoint> leavesBy_;
};

}  // namespace psd
