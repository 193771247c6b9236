#pragma once

#include <optional>
#include <string>

#include "server/replica/replica_action.h"
#include "server/replica/replication_rules.h"

namespace psd {

/// Tracks one daemon's pending requests to the engine and the newest known cluster document.
///
/// A swap is settled only by a view that is newer than the revision it expected: then it has won or never
/// will. It therefore does not matter which answer belongs to which request, nor that answers are late, lost
/// or duplicated. A swap without an answer is followed by a read; reads that fail, or show that the swap is
/// still open, are repeated with growing pauses.
///
/// Pure, like ReplicaState, which owns it.
class DocumentRequests {
 public:
  explicit DocumentRequests(ReplicationRules rules) : rules_(rules), pause_(rules.beat) {}

  const ClusterView& known() const { return known_; }
  /// Whether no swap may be sent: one is pending, or the engine has not answered since one was lost.
  bool busy() const { return swapping_ || uncertain_; }
  /// Whether a request is pending.
  bool asks() const { return swapping_ || reading_; }
  /// Whether a swap from `revision` may have happened without this daemon having seen it.
  bool open(std::optional<uint64_t> revision) const { return revision && *revision >= known_.revision; }

  /// Requests a swap from the known revision. Not while busy().
  void swap(const ClusterView& wanted, ReplicaActions& out);
  /// Requests a read, unless one is pending.
  void read(ReplicaActions& out);
  /// Schedules a read after a pause, unless one is scheduled or pending.
  void readLater(TimePoint now);
  void tick(TimePoint now, ReplicaActions& out);

  void swapAnswered() { swapping_ = false; }
  void swapUnknown(ReplicaActions& out);
  void readAnswered() { reading_ = false; }
  void readUnknown(TimePoint now);
  /// Takes a view of the document. False: it is older than the known one and is ignored.
  bool learn(const ClusterView& view, TimePoint now);
  /// A violated invariant; empty: none.
  std::string checkInvariants() const;

 private:
  ReplicationRules rules_;
  ClusterView known_;
  bool swapping_ = false;
  bool reading_ = false;
  bool uncertain_ = false;            // a swap was lost, and the engine has not answered since
  std::optional<uint64_t> expected_;  // revision that the newest swap expected
  std::optional<uint64_t> lost_;      // revision that the newest unanswered swap expected
  std::optional<TimePoint> readDue_;
  std::chrono::nanoseconds pause_;  // before the next read
};

}  // namespace psd
