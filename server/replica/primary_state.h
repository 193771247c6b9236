#pragma once

#include <optional>
#include <string>

#include "server/replica/document_requests.h"

namespace psd {

/// The primary's half of the rules (group_state.h): which pushes may be answered, when a standby is added to
/// the cluster document and removed from it, how a switchover works.
///
/// Numbers are of records: the first one is 1, `number` is the last that this daemon has. Pure: no threads,
/// locks or clocks; ReplicaState owns it. Times must not decrease.
class PrimaryState {
 public:
  /// `talk` knows the document that names `me` as primary; all records up to `number` count as released.
  PrimaryState(DaemonId me, ReplicationRules rules, DocumentRequests talk, uint64_t number, TimePoint now);

  void recordAppended(uint64_t number, TimePoint now, ReplicaActions& out);
  void standbySubscribed(DaemonId id, TimePoint now, ReplicaActions& out);
  void standbyHolds(DaemonId id, uint64_t number, TimePoint now, ReplicaActions& out);
  void standbyHeard(DaemonId id, TimePoint now);
  void standbyConnectionGone(DaemonId id, TimePoint now, ReplicaActions& out);
  void standbyLeaves(DaemonId id, TimePoint now, ReplicaActions& out);
  void peerDead(DaemonId id, TimePoint now, ReplicaActions& out);
  void swapAnswered(const ClusterView& view, TimePoint now, ReplicaActions& out);
  void swapUnknown(ReplicaActions& out) { talk_.swapUnknown(out); }
  void documentRead(const ClusterView& view, TimePoint now, ReplicaActions& out);
  void readUnknown(TimePoint now, ReplicaActions&) { talk_.readUnknown(now); }
  void tick(TimePoint now, ReplicaActions& out);
  void handOver(TimePoint now, ReplicaActions& out);
  void gatesClosed(TimePoint now, ReplicaActions& out);
  void leave(TimePoint now, ReplicaActions& out);
  /// The run is over: requests no further change of the document, which other daemons may change by then.
  void endRun() { over_ = true; }

  const ClusterView& plan() const { return talk_.known(); }
  /// Whether it has stepped down or may exit; it must not be called any more.
  bool over() const { return over_; }
  /// Whether a request to the engine is pending.
  bool asks() const { return talk_.asks(); }
  /// The standby that pushes wait for.
  std::optional<DaemonId> waitsFor() const { return waiting_ ? std::optional(standby_->id) : std::nullopt; }
  /// The connected follower, and the record up to which it holds everything.
  std::optional<DaemonId> standby() const;
  uint64_t held() const { return standby_ ? standby_->held : 0; }
  /// Whether there is a standby in sync with a recent heartbeat.
  bool mayHandOver(TimePoint now) const;
  /// A violated invariant; empty: none.
  std::string checkInvariants() const;

 private:
  /// A daemon that follows, or that the document names although it does not.
  struct Standby {
    DaemonId id;
    TimePoint heard;
    uint64_t held = 0;
    std::optional<TimePoint> wholeSince;  // when it first reported what it holds (0 if there is no record)
    bool connected = false;
    bool refuses = false;
    bool leaves = false;
    bool told = false;  // notified that it is in sync
  };
  enum class Gates { open, closing, closed };

  bool is(DaemonId id) const { return standby_ && standby_->id == id; }
  bool mayBeNamed() const;
  bool gone(TimePoint now, std::chrono::nanoseconds silence) const;
  void adopt(const ClusterView& view, TimePoint now, ReplicaActions& out);
  void fenced(const ClusterView& view, ReplicaActions& out);
  /// Emits the actions due in the current state.
  void settle(TimePoint now, ReplicaActions& out);
  void release(ReplicaActions& out);
  void add(TimePoint now, ReplicaActions& out);
  void remove(ReplicaActions& out);
  /// Rewrites a document that is gone.
  void renew(TimePoint now, ReplicaActions& out);
  void actForHandover(TimePoint now, ReplicaActions& out);
  void drop(ReplicaActions& out);
  ClusterView viewWith(std::optional<DaemonId> standby) const;

  const DaemonId me_;
  const ReplicationRules rules_;
  DocumentRequests talk_;
  ClusterView own_;  // the newest document that names `me`
  std::optional<TimePoint> vacantSince_;
  bool over_ = false;
  uint64_t appended_;
  uint64_t released_;
  std::optional<Standby> standby_;
  bool waiting_ = false;             // for the standby
  uint64_t waitFrom_ = 0;            // what it must hold before the document may name it
  std::optional<uint64_t> addedAt_;  // revision expected by the newest swap that names the standby
  TimePoint ticked_;
  uint64_t tickAppended_ = 0, closeBehind_ = 0;  // `appended_` at the last tick and the one before
  Gates gates_ = Gates::open;
  TimePoint handOverSince_;
  bool leaving_ = false;
};

}  // namespace psd
