#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <kj/async.h>
#include <kj/timer.h>

#include "server/checkpoint/replicator.h"
#include "server/cluster/cluster_document_client.h"
#include "server/cluster/feed_handle.h"
#include "server/cluster/mailbox.h"
#include "server/cluster/primary_connection.h"
#include "server/cluster/replicated_model.h"
#include "server/hosting/daemon.h"
#include "server/loop/background.h"
#include "server/replica/folder_record.h"
#include "server/replica/replica_state.h"
#include "server/serving/serving_state.h"
#include "server/status/replica_set_status.h"

namespace psd {

/// A daemon's request to follow this one. A value type.
struct FollowerRequest {
  DaemonId follower;  ///< 0: it only asks for this daemon's number
  DaemonId primary;   ///< the daemon it intends to follow
  std::string name;   ///< human-readable
  std::vector<Address> addresses;
  uint32_t records = 0;     ///< the newest record format that it reads; 0: not given
  uint64_t folderTerm = 0;  ///< term of its folder's state (ReplicateResult in the schema)
};

/// Another daemon that waits for the same dead primary, and the term of its folder's state (0: none). A
/// value type.
struct PeerFolder {
  std::string address;
  uint64_t term = 0;
};

/// Settings of a replica. A value type.
struct ReplicaSettings {
  ReplicationConfig replication;
  std::string documentKey;         ///< key of the cluster document in the engine
  std::vector<Address> addresses;  ///< where other daemons reach this one
  std::string name;                ///< human-readable: "psd on node7 (process 4711)"
};

/// Runs this daemon as a replica of its replica set: reads the cluster document from the engine, feeds events
/// to a ReplicaState, and executes the actions that it returns. As primary it admits a standby; as syncing
/// replica it follows the primary; as standby it takes over when the primary dies.
///
/// Owned by the control loop's thread, on which every method is called.
class ReplicaController final : private kj::TaskSet::ErrorHandler {
 public:
  /// The references outlive it. `dial` connects a standby to its primary.
  ReplicaController(ReplicaSettings terms, DaemonId me, Engine& engine, ServingState& serving, Daemon& daemon,
                    ReplicatedModel& model, std::shared_ptr<Replicator> replicator, DialPrimary dial,
                    kj::Timer& timer);
  ~ReplicaController() noexcept(false);

  /// Starts, unless the model has moved to other daemons. `folder`: the saved state that this daemon would
  /// start from. `wasRestarted`: the process belonged to the run before it discarded its state and restarted;
  /// if the run has ended meanwhile, it exits instead of starting another run.
  void start(SavedFolder folder, bool wasRestarted = false);

  /// What an admitted follower needs.
  struct Admitted {
    uint64_t term = 0;
    std::shared_ptr<FeedHandle> feed;
    ReplicaFeed::Copy copy;
    std::shared_ptr<Replicator> replicator;
    ReplicationConfig replication;
  };
  /// Admits a follower, or returns the reason why it is rejected. `loop` runs its feed.
  Result<Admitted> admit(const FollowerRequest& request, std::shared_ptr<EventLoop> loop);
  /// The feed returned by admit() has ended.
  void feedEnded(const std::shared_ptr<FeedHandle>& feed, const Status& why);

  /// The process is about to exit and the run continues: resolves when it may exit. A primary hands over to
  /// its standby if it can.
  kj::Promise<void> leave();
  /// Ends the run, also at the standby if there is one. Resolves once the standby knows. An Error: the engine
  /// has not recorded the end, so daemons that are started later resume the run.
  kj::Promise<Status> endRun(const std::string& reason);
  /// Records in the cluster document that other daemons serve the model, by a swap from the revision that
  /// names this daemon, so that no standby continues to serve it. Resolves with true once that is recorded,
  /// with false or an Error once this call can no longer record it, however long the engine is unreachable.
  /// Until then, and for good if it is recorded, this daemon makes no other change to the document.
  kj::Promise<Result<bool>> moveAway(RecordedMove moved);
  /// Addresses of all daemons that serve the model or may take over.
  std::vector<Address> addressesOfAll() const { return document_.addressesOfAll(); }
  /// Takes over from a dead primary with this daemon's state, even if updates are lost. Rejected if the
  /// primary or its standby answers; both are probed, for `alone_ms` at most.
  kj::Promise<Status> recover();
  /// Switchover: the standby becomes primary and this daemon its standby. Resolves when done or impossible.
  kj::Promise<Status> switchOver();

  DaemonId me() const { return state_.me(); }
  /// The term of the saved state that this daemon would start from; 0: none.
  uint64_t folderTerm() const { return folder_.record ? folder_.record->term : 0; }
  /// Where other daemons reach this one, as recorded in the cluster document.
  const std::vector<Address>& addresses() const { return terms_.addresses; }
  /// Resolves with its term once it serves in a term above `known` and, if `primary` is given, has followed
  /// that daemon. The latter keeps a caller from switching to the primary of another replica set.
  kj::Promise<uint64_t> whenServing(uint64_t known, DaemonId primary);
  ReplicaSetStatus status() const;
  /// Known addresses of the other replicas.
  std::vector<Address> others() const;

 private:
  /// Whether the rules (ReplicaState) are in control.
  enum class Rules : uint8_t {
    unread,  ///< the cluster document has not been read yet
    decide,
    suspended,  ///< moveAway() is changing the document
    over,       ///< this daemon changes the document no more: it exits, or the model has moved
  };
  /// A pending call of whenServing().
  struct ServingWaiter {
    uint64_t known;
    DaemonId primary;
    kj::Own<kj::PromiseFulfiller<uint64_t>> served;
  };
  /// A call into the rules; returns the actions to execute.
  using Event = std::function<ReplicaActions(TimePoint now)>;

  static TimePoint now() { return std::chrono::steady_clock::now(); }
  /// Whether the rules (ReplicaState) decide.
  bool active() const { return rules_ == Rules::decide; }
  /// Passes `event` to the rules and executes the resulting actions.
  void handleEvent(const Event& event);
  /// Tells the ServingState that this daemon does not serve, and why, unless it serves.
  void withhold();
  ServingPhase phase() const;
  Error rejectionReason() const;

  // Executes one action.
  void act(const replica_action::Swap& swap);
  void act(const replica_action::Read&);
  void act(const replica_action::AnswerUpTo&) {}  // handleEvent() has notified the replicator
  void act(const replica_action::NotifyInSync& told);
  void act(const replica_action::NotifyTakeover& told);
  void act(const replica_action::DropStandby& dropped);
  void act(const replica_action::CloseGates&);
  void act(const replica_action::OpenGates&);
  void act(const replica_action::Follow& follow);
  void act(const replica_action::CloseReplication&);
  void act(const replica_action::NotifyLeaving&);
  void act(const replica_action::Promote& promoted);
  void act(const replica_action::TermRenewed& renewed);
  void act(const replica_action::StepDown& down);
  void act(const replica_action::MayExit& ended);
  void act(const replica_action::RunOver&);

  kj::Promise<void> keepTicking();
  void tick();
  kj::Promise<void> keepWatching();
  void learn(const Result<ClusterView>& plan);
  /// Resolves with true once no request to the engine is in flight; with false at `until`.
  kj::Promise<bool> whenEngineIdle(TimePoint until);
  /// Records that the run is over, after pending requests have finished, or at `until` at the latest.
  kj::Promise<Status> endPlan(TimePoint until);
  kj::Promise<Result<bool>> retryMoveAway(RecordedMove moved, bool told);
  /// The document says that other daemons serve the model.
  void enterMoved();
  /// Resolves leave().
  void resolveLeave();
  kj::Promise<void> retryStart(const Error& error);
  /// Becomes primary if this daemon's folder holds the state of the recorded primary or of its standby.
  void claimOwnState();
  /// Forwards the follower's heartbeats and progress since the last call to the rules.
  void pollFollower();
  void reportHeld();
  /// Probes a daemon. An Error: it answers, or something else does at its address.
  kj::Promise<Status> probeDead(DaemonId daemon, std::string what);
  Status claimIfAllowed();
  /// Whether the folder has all versions that readers may know, where the daemon starts from its state.
  bool folderHasAllVersions() const;
  /// Dials the primary to follow. `probeOnly`: keeps the existing copy and only probes whether the primary
  /// is alive.
  void dial(bool probeOnly);
  void beginServing(uint64_t term);
  /// The condition of whenServing().
  bool hasTakenOver(uint64_t known, DaemonId primary) const;
  void connectionEnded(ConnectionEnd how, const Status& ended);
  /// The root cause of a closed connection: the copy's own error if it failed, else `why`.
  Status causeOf(const Status& why) const;
  /// The run that this daemon follows is over: exits, too.
  void endWithRun(const std::string& reason);
  /// The run is over, perhaps because the model has moved: the primary's message may precede the document.
  kj::Promise<void> checkForMove();
  /// Where no daemon takes over automatically: adds what an operator can do.
  Status withAdvice(const Status& primaryDead) const;
  std::string adviceOf(const ClusterView& plan) const;
  bool isHere(const std::vector<Address>& addresses) const;
  /// Logs why this daemon does not follow yet.
  void waitFor(const Status& why);
  /// If no daemon serves, or this one cannot follow the one that does: logs what it waits for and shows it in
  /// the status.
  void updateUndecided();
  std::string undecided() const;
  std::string undecided(const EndedRun& run) const;
  /// "psd recover --server …"
  std::string recoverHere() const;
  /// "the state of term 7"
  std::string ownStateText() const;
  void caughtUp();
  kj::Promise<Status> notifyDocumentChanged();
  void close(FeedHandle& feed, const std::string& why);
  /// Probes whether a standby whose connection broke is certainly dead.
  void probeStandby(DaemonId standby, std::vector<Address> addresses);
  kj::Promise<void> whenLastNoticeSent();
  void taskFailed(kj::Exception&& exception) override;

  const ReplicaSettings terms_;
  ClusterDocumentClient document_;
  ServingState& serving_;
  Daemon& daemon_;
  ReplicatedModel& model_;
  const std::shared_ptr<Replicator> replicator_;
  const DialPrimary dial_;
  kj::Timer& timer_;
  const kj::Own<const kj::Executor> executor_ = kj::getCurrentThreadExecutor().addRef();
  ReplicaState state_;
  Rules rules_ = Rules::unread;
  TimePoint startedAt_;
  SavedFolder folder_;
  bool mayClaim_ = true;  // the folder may be that of the recorded primary or standby
  bool wasRestarted_ = false;
  bool leaving_ = false;   // the process is about to exit
  bool recovers_ = false;  // an operator has made it take over with what it has

  // As primary.
  DaemonId follower_;
  std::string followerName_;
  std::vector<Address> followerAddresses_;
  std::vector<Address> waitingAddresses_;  // of the last daemon rejected because the model has no values yet
  std::shared_ptr<FeedHandle> feed_;
  uint64_t feedHeardMs_ = 0;
  std::optional<uint64_t> feedHeld_;  // the last record that the rules know it holds

  // As standby.
  std::optional<replica_action::Follow> following_;
  std::shared_ptr<Follower> copy_;
  bool hasCopy_ = false;
  std::unique_ptr<PrimaryConnection> connection_;
  uint64_t connections_ = 0;  // number of connections made; events of older ones are ignored
  std::shared_ptr<std::atomic<uint64_t>> heardMs_ = std::make_shared<std::atomic<uint64_t>>(0);
  uint64_t heardTold_ = 0;
  std::chrono::milliseconds dialPause_{0};  // before the next dial
  std::string waitsFor_;                    // human-readable: why it does not follow yet
  bool undecided_ = false;                  // waitsFor_ is the text of undecided()
  std::optional<PeerFolder> peer_;          // another daemon that waits for the same primary

  double takeoverSeconds_ = 0;  // last takeover: from the primary's last heartbeat until serving
  std::vector<ServingWaiter> servingWaiters_;
  std::set<DaemonId> hasFollowed_;  // primaries that this process has followed
  kj::Maybe<kj::Own<kj::PromiseFulfiller<void>>> leaver_;
  kj::Maybe<kj::Own<kj::PromiseFulfiller<Status>>> switched_;
  Mailbox mailbox_;                         // events from the connection's thread
  kj::Promise<Status> lastWord_{Status()};  // last notification to a follower before this daemon exits
  Background background_;
  kj::TaskSet tasks_;  // last: its tasks use all of the above
};

}  // namespace psd
