#pragma once

#include <optional>

#include "server/replica/group_action.h"
#include "server/replica/group_rules.h"

namespace psd {

/// What one daemon has asked of the engine, and what it knows of the plan.
///
/// A swap is settled only by a view of the plan that is newer than the revision it expected: then it has won
/// or never will. Which answer belongs to which request therefore does not matter, nor that answers are late,
/// lost, or come twice. A swap without an answer is followed by a read, and reads that are not answered, or
/// show that the swap is still open, by more of them, ever more slowly.
///
/// Pure, like GroupState, which owns it.
class PlanTalk {
 public:
  explicit PlanTalk(GroupRules rules) : rules_(rules), pause_(rules.beat) {}

  const PlanView& known() const { return known_; }
  /// Whether no swap is to be sent: one is under way, or nothing was heard from the engine since one was
  /// lost.
  bool busy() const { return swapping_ || uncertain_; }
  /// Whether an answer is waited for, or a read is due.
  bool asks() const { return busy() || reading_ || readDue_; }
  /// Whether a swap from `revision` may be in the plan without this daemon having seen it.
  bool open(std::optional<uint64_t> revision) const { return revision && *revision >= known_.revision; }

  /// Asks for a swap from the known revision. Not while busy.
  void swap(const PlanView& wanted, GroupActions& out);
  /// Asks for a read, unless one is under way.
  void read(GroupActions& out);
  /// Asks for a read in a while, unless one is due or under way.
  void readLater(TimePoint now);
  void tick(TimePoint now, GroupActions& out);

  void swapAnswered() { swapping_ = false; }
  void swapUnknown(GroupActions& out);
  void readAnswered() { reading_ = false; }
  void readUnknown(TimePoint now);
  /// A view of the plan has come. False: an older one than is known, which says nothing.
  bool learn(const PlanView& view, TimePoint now);

 private:
  GroupRules rules_;
  PlanView known_;
  bool swapping_ = false;
  bool reading_ = false;
  bool uncertain_ = false;            // a swap was lost, and nothing was heard since
  std::optional<uint64_t> expected_;  // of the newest swap
  std::optional<uint64_t> lost_;      // of the newest swap that had no answer
  std::optional<TimePoint> readDue_;
  std::chrono::nanoseconds pause_;  // before the next read
};

}  // namespace psd
