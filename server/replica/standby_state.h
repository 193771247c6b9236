#pragma once

#include <optional>
#include <string>

#include "server/replica/document_requests.h"
#include "server/replica/folder_record.h"

namespace psd {

/// The rules (group_state.h) for replicas other than the primary: a syncing replica, which follows the
/// primary without being in the cluster document, and the standby in sync, which the document names.
///
/// Pure: no threads, locks or clocks; ReplicaState owns it. Times must not decrease.
class StandbyState {
 public:
  StandbyState(DaemonId me, ReplicationRules rules, TimePoint now)
      : me_(me), rules_(rules), talk_(rules), heard_(now), ticked_(now) {}

  void start(const ClusterView& view, uint64_t number, SavedFolder folder, TimePoint now,
             ReplicaActions& out);
  void primaryHeard(TimePoint now);
  void recordsHeld(uint64_t number, TimePoint now);
  void primaryConnectionGone(TimePoint now, ReplicaActions& out);
  void peerDead(DaemonId id, TimePoint now, ReplicaActions& out);
  void swapAnswered(const ClusterView& view, TimePoint now, ReplicaActions& out);
  void swapUnknown(ReplicaActions& out) { talk_.swapUnknown(out); }
  void documentRead(const ClusterView& view, TimePoint now, ReplicaActions& out);
  void readUnknown(TimePoint now, ReplicaActions& out);
  void tick(TimePoint now, ReplicaActions& out);
  void claim(const ClusterView& view, TimePoint now, ReplicaActions& out);
  void leave(TimePoint now, ReplicaActions& out);

  const ClusterView& plan() const { return talk_.known(); }
  const DocumentRequests& talk() const { return talk_; }
  /// The document names it as primary: the last action was Promote.
  bool promoted() const { return promoted_; }
  bool over() const { return over_; }
  bool leaving() const { return leavesBy_.has_value(); }
  const SavedFolder& folder() const { return folder_; }
  /// Whether the newest known document lets it take over.
  bool inSync() const { return held_ && plan().standby == me_; }
  /// Whether to accept records of this primary and term.
  bool takes(DaemonId primary, uint64_t term) const;
  /// The last record held.
  uint64_t number() const { return held_.value_or(number_); }
  /// A violated invariant; empty: none.
  std::string checkInvariants() const;

 private:
  void adopt(const ClusterView& view, TimePoint now, ReplicaActions& out);
  void promote(const ClusterView& view, ReplicaActions& out);
  void follow(TimePoint now, ReplicaActions& out);
  /// Emits the actions due while no daemon serves.
  void actWithoutPrimary(TimePoint now, ReplicaActions& out);
  /// The last run, as known from its folder or from a document that is gone; nothing: none is known.
  std::optional<EndedRun> lastKnown() const;
  /// Starts the first run, or the next one after the run that is over.
  void begin(ReplicaActions& out);
  /// Reacts to silence or certain death of the primary.
  void settle(TimePoint now, ReplicaActions& out);
  void takeOver(ReplicaActions& out);
  void end(ReplicaActions& out);
  bool silent(TimePoint now) const { return refuses_ || now - heard_ > rules_.silence; }

  const DaemonId me_;
  const ReplicationRules rules_;
  DocumentRequests talk_;
  SavedFolder folder_;
  std::optional<ClusterView> named_;  // the newest document of the run that it takes part in
  std::optional<TimePoint> vacantSince_;
  bool over_ = false;
  bool promoted_ = false;
  uint64_t number_ = 0;                  // last record of the state that the process started from
  std::optional<uint64_t> held_;         // last record held of the followed primary
  std::optional<ClusterView> followed_;  // origin of these records: only primary and term are valid
  bool deciding_ = false;                // it has closed the replication and attempts a takeover
  TimePoint heard_;
  TimePoint ticked_;
  bool refuses_ = false;
  std::optional<ClusterView> claimed_;
  std::optional<TimePoint> leavesBy_;
};

}  // namespace psd
