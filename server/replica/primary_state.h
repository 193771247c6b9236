#pragma once

#include <optional>

#include "server/replica/plan_talk.h"

namespace psd {

/// The rules of a group (group_state.h) as its primary has to keep them: which pushes may be answered, when a
/// standby is added to the plan and when it is removed, how the group is handed over.
///
/// Numbers are of records: 1 is the first of the group, `number` the last that this daemon has. Pure: no
/// threads, locks or clocks; GroupState owns it. Times must not go back.
class PrimaryState {
 public:
  /// `talk` knows the plan that names `me` as primary; what it names nobody else as yet is released.
  PrimaryState(DaemonId me, GroupRules rules, PlanTalk talk, uint64_t number, TimePoint now);

  void recordAppended(uint64_t number, TimePoint now, GroupActions& out);
  void standbySubscribed(DaemonId id, TimePoint now, GroupActions& out);
  void standbyHolds(DaemonId id, uint64_t number, TimePoint now, GroupActions& out);
  void standbyHeard(DaemonId id, TimePoint now);
  void standbyConnectionGone(DaemonId id, TimePoint now, GroupActions& out);
  void standbyLeaves(DaemonId id, TimePoint now, GroupActions& out);
  void peerRefuses(DaemonId id, TimePoint now, GroupActions& out);
  void swapAnswered(const PlanView& view, TimePoint now, GroupActions& out);
  void swapUnknown(GroupActions& out) { talk_.swapUnknown(out); }
  void planRead(const PlanView& view, TimePoint now, GroupActions& out);
  void readUnknown(TimePoint now, GroupActions&) { talk_.readUnknown(now); }
  void tick(TimePoint now, GroupActions& out);
  void handOver(TimePoint now, GroupActions& out);
  void gatesClosed(TimePoint now, GroupActions& out);
  void leave(TimePoint now, GroupActions& out);
  /// The run is over: nothing is wanted of the plan any more, which others may have changed by then.
  void endRun() { over_ = true; }

  const PlanView& plan() const { return talk_.known(); }
  /// Whether it has stepped down or may end: nothing is to be asked of it any more.
  bool over() const { return over_; }
  /// Whether it waits for an answer of the engine, or wants to ask it soon.
  bool asks() const { return talk_.asks(); }
  /// Whom pushes wait for.
  std::optional<DaemonId> waitsFor() const { return waiting_ ? std::optional(standby_->id) : std::nullopt; }
  /// Whose connection stands, and up to which record it holds everything.
  std::optional<DaemonId> standby() const;
  uint64_t held() const { return standby_ ? standby_->held : 0; }
  /// Whether there is a standby in sync that was heard of lately.
  bool mayHandOver(TimePoint now) const;

 private:
  /// A daemon that follows, or that the plan names while it does not.
  struct Standby {
    DaemonId id;
    TimePoint heard;
    uint64_t held = 0;
    std::optional<TimePoint> wholeSince;  // when it first said what it holds: with no record that is 0
    bool connected = false;
    bool refuses = false;
    bool leaves = false;
    bool told = false;  // that it is in sync
  };
  enum class Gates { open, closing, closed };

  bool is(DaemonId id) const { return standby_ && standby_->id == id; }
  bool mayBeNamed() const;
  bool gone(TimePoint now, std::chrono::nanoseconds silence) const;
  void adopt(const PlanView& view, TimePoint now, GroupActions& out);
  void fenced(const PlanView& view, GroupActions& out);
  /// Does what is to be done in the state that an event has left.
  void settle(TimePoint now, GroupActions& out);
  void release(GroupActions& out);
  void add(TimePoint now, GroupActions& out);
  void remove(GroupActions& out);
  /// Writes the plan again that is gone.
  void renew(TimePoint now, GroupActions& out);
  void settleHandOver(TimePoint now, GroupActions& out);
  void drop(GroupActions& out);
  PlanView planWith(std::optional<DaemonId> standby) const;

  const DaemonId me_;
  const GroupRules rules_;
  PlanTalk talk_;
  PlanView own_;  // the newest plan that was seen; it names `me`
  std::optional<TimePoint> vacantSince_;
  bool over_ = false;
  uint64_t appended_;
  uint64_t released_;
  std::optional<Standby> standby_;
  bool waiting_ = false;             // for the standby
  uint64_t waitFrom_ = 0;            // what it has to hold before the plan may name it
  std::optional<uint64_t> addedAt_;  // the revision that the newest swap which names the standby expected
  TimePoint ticked_;
  uint64_t tickAppended_ = 0, closeBehind_ = 0;  // `appended_` at the last tick, and at the one before it
  Gates gates_ = Gates::open;
  TimePoint handOverSince_;
  bool leaving_ = false;
};

}  // namespace psd
