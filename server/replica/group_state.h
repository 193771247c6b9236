#pragma once

#include <optional>
#include <string_view>
#include <variant>

#include "server/replica/primary_state.h"
#include "server/replica/standby_state.h"

namespace psd {

/// What a daemon is to its group.
enum class GroupRole {
  newcomer,  ///< the plan does not name it, as far as it knows: it follows the primary, if there is one
  standby,   ///< the plan names it: it holds every answered push, and takes the primary's place when that is
             ///< gone
  primary,   ///< it answers pushes
  over,      ///< it has stepped down or may end: whoever goes on does so as another GroupState
};

/// One daemon's part in a group of shards that is kept twice: by a primary, which answers pushes, and by a
/// standby, which holds all that was answered. Who is which stands in the plan, a document that an engine
/// keeps: one register, read linearizably, changed by compare-and-swap of its revision. PacificA (Lin, Yang,
/// Zhang, Zhou 2008) is the scheme.
///
/// The rules, and what breaks without each:
///
///  1. A primary answers a push when its record is in every place that it waits for: the standby that it
///  waits
///     for (AnswerUpTo says so) and, if it is so configured, the disk (the caller's part).
///     Without: what was answered dies with the primary.
///  2. Adding: it begins to wait for the standby, lets it hold everything up to there, then swaps the plan.
///     In reverse: the standby takes over without pushes that were answered between the two.
///  3. Removing: it swaps the plan, then stops waiting.
///     In reverse: it answers alone what a standby that still may take over does not have.
///  4. A standby makes itself primary only by a swap that succeeds from the revision that names it, this
///  process,
///     in sync: a new epoch, itself as primary, no standby.
///     Without: two primaries, and one that was removed for being behind takes over.
///  5. A swap without an answer is unknown: who waits goes on waiting until a newer revision was read.
///     Taken for a no: the plan names a standby that nobody waits for.
///  6. A process is itself only until it dies or throws its state away: its DaemonId is never used again.
///     Without: the plan lets somebody serve who has forgotten what made it fit for that.
///  7. A standby that goes for the primary's place closes the replication first, and never takes a record
///     of an epoch older than the one that it serves or follows.
///     Without: records of the old primary land among those of the new one.
///  8. A primary that the plan no longer names throws its shards away and becomes a newcomer under another
///     number.
///     Without: it goes on with updates that nobody was told of and that the new primary does not have.
///  9. A primary without a standby in the plan, and without a swap under way that may put one there, answers
///     alone and asks nobody: nobody else can be promoted.
///     Without: a daemon alone stands still whenever the engine is away.
///
/// 10. A plan that is gone is written again by the daemon that served in it, in an epoch that no daemon had:
///     with the standby that it waits for, if it hears that one. All others write what they know of it as a
///     guess, of which no daemon makes itself primary. Without: a new daemon begins with nothing beside those
///     that have the group, a standby takes over that was removed before the plan was lost, or a daemon that
///     missed the last epochs restores an old one.
///
/// 11. After a run the next one begins from a folder that has all of its state, or by an operator's decision
///     (folder_record.h). If there is no plan, and no daemon that served in it, a daemon over a folder with
///     state writes that down, and an operator decides. Without: the daemon that is started first serves its
///     own state, however old, and the others follow.
///
/// No rule uses a clock: times only decide when something is tried. With GroupRules::Wait::none rule 1 does
/// not wait for the standby, and what was answered may be lost with the primary; all else holds.
///
/// Further, as the rules alone leave it open:
///  - What a swap came to is told by the revisions of views alone (PlanTalk), so answers may be late or
///    mixed up.
///  - A swap that was refused because another group's part had changed is made again from the new revision.
///  - The wait of rule 2 begins when the standby lacks no more than a beat or two bring, so that pushes pause
///    for a moment and not for the time of catching up; or when it has not come that close for `alone`, since
///    pushes go as fast as it takes them: what it lacks has a bound.
///  - A standby whose swap has no answer, and that cannot read the plan either, goes back to following: with
///    the engine away and the primary alive, pushes wait for it. Its swap may win even so: it is told by the
///    next read, and what it has acknowledged until then it holds.
///  - A standby that does not know that it was added asks for the plan before it gives up on a silent
///  primary.
///  - What was removed from the plan while it followed the same primary all along keeps its state and its
///  number.
///  - When both are dead, nobody is promoted, and claim() is the way out.
///
/// Every call returns what is to be done, in order; calls that do not fit the role do nothing, so that events
/// may be late. Pure: no threads, locks or clocks. Owned by one thread; times must not go back.
class GroupState {
 public:
  /// `me`: drawn for this object, and used by no other one before or after. 0 is nobody's.
  GroupState(DaemonId me, GroupRules rules, TimePoint now);

  // --- Both roles ---

  /// First of all, once: the plan as it was read, and the last record of what this daemon holds (0: nothing).
  /// With no plan it makes one with itself as primary, once nobody else has done so for `absence`; of two
  /// that do, one wins and the other follows.
  /// If the plan's run is over, beginsAfter() decides who begins the next one. `folder`: the state that this
  /// daemon would begin with.
  GroupActions start(const PlanView& view, uint64_t number, TimePoint now, SavedFolder folder = {});
  /// To be called every `beat`.
  GroupActions tick(TimePoint now);
  /// The plan: as a Read, a watch or another daemon (TellInSync, TellTakeOver) gave it. Welcome at any time.
  GroupActions planRead(const PlanView& view, TimePoint now);
  /// A Read had no answer.
  GroupActions readUnknown(TimePoint now);
  /// The swap is in the plan. `view`: the plan after it.
  GroupActions swapWon(const PlanView& view, TimePoint now);
  /// The plan had another revision. `view`: the plan as it is.
  GroupActions swapRefused(const PlanView& view, TimePoint now);
  /// The swap had no answer: it may be in the plan, or come to be there.
  GroupActions swapUnknown(TimePoint now);
  /// The process `id` is certainly dead: its address refuses connections, or another process answers there.
  GroupActions peerRefuses(DaemonId id, TimePoint now);
  /// The process is to end: Ended says when it may. A primary hands its group over, if it can; a standby asks
  /// to be removed, for `alone` at most.
  GroupActions leave(TimePoint now);

  // --- The primary ---

  /// Record `number` is in the shards and sent to who follows. They are appended in order.
  GroupActions recordAppended(uint64_t number, TimePoint now);
  /// A daemon has dialled and asks for records; an event of a connection is one of the newest of its daemon.
  GroupActions standbySubscribed(DaemonId id, TimePoint now);
  /// It holds everything up to record `number`, counted as here. Said first when the image it began with is
  /// whole. More than there is breaks the connection.
  GroupActions standbyHolds(DaemonId id, uint64_t number, TimePoint now);
  GroupActions standbyHeard(DaemonId id, TimePoint now);
  GroupActions standbyConnectionGone(DaemonId id, TimePoint now);
  /// It is about to end, or does not want to take over now.
  GroupActions standbyLeaves(DaemonId id, TimePoint now);
  /// A planned switch-over: CloseGates … gatesClosed() … StepDown(handedOver), or OpenGates where it cannot
  /// be.
  GroupActions handOver(TimePoint now);
  /// After CloseGates: the last record was appended.
  GroupActions gatesClosed(TimePoint now);

  /// The run ends, and so will its plan: this daemon writes none from now on.
  GroupActions endRun();

  // --- Newcomer and standby ---

  /// Anything came from the primary that Follow named.
  GroupActions primaryHeard(TimePoint now);
  /// Everything up to record `number` is here, whole and in order; said first when the image is whole. To be
  /// called before the primary is told.
  GroupActions recordsHeld(uint64_t number, TimePoint now);
  GroupActions primaryConnectionGone(TimePoint now);
  /// Whether records of this primary and epoch are to be taken; others are dropped.
  bool takes(DaemonId primary, uint64_t epoch) const;
  /// Takes the place of the primary that `view` names, with what is here, by a swap from that very plan. Only
  /// for someone who knows that the primary is dead and that nobody may take over who holds more: neither is
  /// known here, and what only they hold is lost. No actions: not a newcomer, `view` out of date, or a swap
  /// under way.
  /// Of a plan whose run is over it begins the next one.
  GroupActions claim(const PlanView& view, TimePoint now);

  // --- What it is ---

  DaemonId me() const { return me_; }
  GroupRole role() const;
  /// Whether it is a newcomer that does not follow because its folder has state that the plan's run began
  /// without.
  bool contradicts() const;
  /// The plan as it is known here.
  const PlanView& plan() const;
  /// The primary's part, while it is one, for people: whom it waits for, what they hold.
  const PrimaryState* primary() const { return std::get_if<PrimaryState>(&state_); }
  /// The last record that is here; of the primary's part: when it became one.
  uint64_t number() const { return number_; }

 private:
  template <class Call>
  GroupActions asPrimary(Call call);
  template <class Call>
  GroupActions asFollower(TimePoint now, Call call);
  template <class Call>
  GroupActions asAny(TimePoint now, Call call);
  void becomePrimary(TimePoint now, GroupActions& out);

  const DaemonId me_;
  const GroupRules rules_;
  std::variant<StandbyState, PrimaryState> state_;
  uint64_t number_ = 0;
};

/// For people and status documents: "newcomer", "standby", "primary", "over".
std::string_view describe(GroupRole role);

}  // namespace psd
