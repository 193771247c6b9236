#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "server/replica/primary_state.h"
#include "server/replica/standby_state.h"

namespace psd {

/// A daemon's role in its replica set.
enum class ReplicaRole {
  syncing,  ///< syncing: the document does not name it, as far as it knows; follows the primary, if any
  standby,  ///< the document names it: holds every answered push, takes over when the primary is gone
  primary,  ///< answers pushes
  ended,    ///< has stepped down or may exit: continues, if so, with another ReplicaState
};

/// State machine of one replica: a set of shards is kept twice, by a primary, which answers pushes, and by a
/// standby, which holds all that was answered. The cluster document records which daemon has which role: one
/// register in the engine, read linearizably, changed by compare-and-swap of its revision. The scheme is
/// PacificA (Lin, Yang, Zhang, Zhou 2008).
///
/// The rules, and what breaks without each:
///
///  1. A primary answers a push when its record is in every place that it waits for: the standby that it
///     waits for (AnswerUpTo says so) and, if so configured, the disk (the caller's part).
///     Without: answered pushes die with the primary.
///  2. Adding a standby: start to wait for it, let it hold everything up to that point, then swap the
///     document.
///     In reverse: the standby takes over without pushes that were answered between the two.
///  3. Removing a standby: swap the document, then stop waiting.
///     In reverse: the primary alone answers pushes that a standby which may still take over does not have.
///  4. A standby becomes primary only by a swap that succeeds from the revision that names it, this process,
///     as in sync: with a new term, itself as primary, and no standby.
///     Without: two primaries, and a standby that was removed for lagging takes over.
///  5. A swap without an answer has an unknown outcome: the primary keeps waiting until it has read a newer
///     revision.
///     Treated as a failure: the document names a standby that no primary waits for.
///  6. A process keeps its identity only until it exits or discards its state: its DaemonId is never reused.
///     Without: the document lets a daemon serve that has lost the state that made it eligible.
///  7. A standby that attempts a takeover closes the replication first, and never accepts a record of a term
///     older than the one that it serves or follows.
///     Without: records of the old primary land among those of the new one.
///  8. A primary that the document no longer names discards its shards and becomes a syncing replica under
///     another number.
///     Without: it keeps updates that were never acknowledged and that the new primary does not have.
///  9. A primary without a standby in the document, and without a pending swap that may add one, answers
///     alone and does not consult the engine: no other daemon can be promoted.
///     Without: a daemon alone stalls whenever the engine is unreachable.
/// 10. A document that is gone is rewritten by the daemon that served in it, in a term that no daemon had,
///     with the standby that it waits for if that one is alive. All others write what they know of it as a
///     guess, which makes no daemon primary.
///     Without: a new daemon starts empty beside those that have the model, a standby takes over that was
///     removed before the document was lost, or a daemon that missed the last terms restores an old one.
/// 11. After a run, the next one starts from a folder that has all of its state, or by an operator's decision
///     (folder_record.h). If there is no document and no daemon that served in one, a daemon whose folder has
///     state writes that down, and an operator decides.
///     Without: the daemon that is started first serves its own state, however old, and the others follow.
///
/// No rule uses a clock: times only decide when something is tried. With ReplicationRules::Wait::none, rule 1
/// does not wait for the standby, and answered pushes may be lost with the primary; everything else holds.
///
/// Decisions that the rules leave open:
///  - The outcome of a swap is derived from the revisions of views alone (DocumentRequests), so answers may
///  be late
///    or out of order.
///  - A swap that was refused because another part of the document had changed is repeated from the new
///    revision.
///  - The wait of rule 2 starts when the standby lags by no more than a beat or two of pushes, so that pushes
///    pause for a moment and not for the whole catch-up; or when it has not come that close for `alone`,
///    since pushes are then limited by its speed: its lag is bounded.
///  - A standby whose swap has no answer, and that cannot read the document either, resumes following: if the
///    engine is unreachable and the primary alive, pushes wait for it. Its swap may still win: the next read
///    shows that, and it holds everything that it has acknowledged until then.
///  - A standby that does not know that it was added reads the document before it gives up on a silent
///    primary.
///  - A replica that was removed from the document while it followed the same primary keeps its state and its
///    number.
///  - When both are dead, no daemon is promoted; claim() is the way out.
///
/// Every call returns the actions to execute, in order. Calls that do not fit the role have no effect, so
/// events may be late. Pure: no threads, locks or clocks. Owned by one thread; times must not decrease.
class ReplicaState {
 public:
  /// `me`: a random number unique to this object, never reused and never 0.
  ReplicaState(DaemonId me, ReplicationRules rules, TimePoint now);

  // --- All roles ---

  /// The first call, once: the document as read, and the last record that this daemon holds (0: none). If
  /// there is no document, writes one with itself as primary once no other daemon has done so for `absence`;
  /// of two daemons that do, one wins and the other follows. If the document's run is over, startDelay()
  /// decides which daemon starts the next one. `folder`: the saved state that this daemon would start from.
  ReplicaActions start(const ClusterView& view, uint64_t number, TimePoint now, SavedFolder folder = {});
  /// Call every `beat`.
  ReplicaActions tick(TimePoint now);
  /// The document, from a Read, a watch or another daemon (NotifyInSync, NotifyTakeover). Allowed at any
  /// time.
  ReplicaActions documentRead(const ClusterView& view, TimePoint now);
  /// A Read failed.
  ReplicaActions readUnknown(TimePoint now);
  /// The swap succeeded. `view`: the document after it.
  ReplicaActions swapWon(const ClusterView& view, TimePoint now);
  /// The document had another revision. `view`: the current document.
  ReplicaActions swapRefused(const ClusterView& view, TimePoint now);
  /// The swap had no answer: it may have happened, or may still happen.
  ReplicaActions swapUnknown(TimePoint now);
  /// The process `id` is certainly dead: its address refuses connections, or another process answers there.
  ReplicaActions peerDead(DaemonId id, TimePoint now);
  /// The process is about to exit: MayExit says when it may. A primary hands over to its standby if it can; a
  /// standby asks to be removed, for `alone` at most.
  ReplicaActions leave(TimePoint now);

  // --- The primary ---

  /// Record `number` is in the shards and sent to the follower. Records are appended in order.
  ReplicaActions recordAppended(uint64_t number, TimePoint now);
  /// A daemon has connected and requests records; later events concern its newest connection.
  ReplicaActions standbySubscribed(DaemonId id, TimePoint now);
  /// It holds everything up to record `number`, in this primary's numbering. First called when its image is
  /// complete. A number above the last record breaks the connection.
  ReplicaActions standbyHolds(DaemonId id, uint64_t number, TimePoint now);
  ReplicaActions standbyHeard(DaemonId id, TimePoint now);
  ReplicaActions standbyConnectionGone(DaemonId id, TimePoint now);
  /// It is about to exit, or cannot take over now.
  ReplicaActions standbyLeaves(DaemonId id, TimePoint now);
  /// A switchover: CloseGates … gatesClosed() … StepDown(handedOver), or OpenGates if it is not possible.
  ReplicaActions handOver(TimePoint now);
  /// After CloseGates: the last record has been appended.
  ReplicaActions gatesClosed(TimePoint now);

  /// The run ends: this daemon makes no further change to the document.
  ReplicaActions endRun();

  // --- Syncing replica and standby ---

  /// A message arrived from the primary named by Follow.
  ReplicaActions primaryHeard(TimePoint now);
  /// Everything up to record `number` is held, complete and in order; first called when the image is
  /// complete. Call before the primary is notified.
  ReplicaActions recordsHeld(uint64_t number, TimePoint now);
  ReplicaActions primaryConnectionGone(TimePoint now);
  /// Whether to accept records of this primary and term; others are dropped.
  bool takes(DaemonId primary, uint64_t term) const;
  /// Takes over from the primary that `view` names, with this daemon's state, by a swap from exactly that
  /// revision. Only for callers who know that the primary is dead and that no daemon that holds more can take
  /// over: neither is checked here, and what only they hold is lost. No actions if the role is another one,
  /// `view` is out of date, or a swap is pending. If the document's run is over, starts the next one.
  ReplicaActions claim(const ClusterView& view, TimePoint now);

  // --- State ---

  DaemonId me() const { return me_; }
  ReplicaRole role() const;
  /// Whether it is a syncing replica that does not follow because the document's run started without the
  /// state of its folder.
  bool contradicts() const;
  /// The newest known document.
  const ClusterView& plan() const;
  /// The primary's state, for the status; null in other roles.
  const PrimaryState* primary() const { return std::get_if<PrimaryState>(&state_); }
  /// The last record held; for a primary, as of its promotion.
  uint64_t number() const { return number_; }
  /// A violated invariant; empty: none.
  std::string checkInvariants() const;

 private:
  template <class Call>
  ReplicaActions asPrimary(Call call);
  template <class Call>
  ReplicaActions asFollower(TimePoint now, Call call);
  template <class Call>
  ReplicaActions asAny(TimePoint now, Call call);
  void becomePrimary(TimePoint now, ReplicaActions& out);

  const DaemonId me_;
  const ReplicationRules rules_;
  std::variant<StandbyState, PrimaryState> state_;
  uint64_t number_ = 0;
};

/// For logs and status documents: "syncing", "standby", "primary", "ended".
std::string_view describe(ReplicaRole role);

}  // namespace psd
