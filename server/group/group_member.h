#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <kj/async.h>
#include <kj/timer.h>

#include "server/group/feed_handle.h"
#include "server/group/group_host.h"
#include "server/group/group_plan.h"
#include "server/group/mailbox.h"
#include "server/group/primary_connection.h"
#include "server/loop/background.h"
#include "server/replica/folder_record.h"
#include "server/replica/group_state.h"
#include "server/replica/replicator.h"
#include "server/status/group_status.h"

namespace psd {

/// A daemon that asks to follow this one. A value type.
struct FollowerRequest {
  DaemonId follower;  ///< 0: it asks for the number of this daemon alone
  DaemonId primary;   ///< the daemon that it means
  std::string name;   ///< for people
  std::vector<Address> addresses;
  uint32_t records = 0;      ///< the newest format of records that it reads; 0: it did not say
  uint64_t folderEpoch = 0;  ///< whose state its folder has (ReplicateResult in the schema)
};

/// A daemon that waits for the same dead primary, and the epoch of its folder's state; 0: none. A
/// value type.
struct PeerFolder {
  std::string address;
  uint64_t epoch = 0;
};

/// What a group member goes by. A value type.
struct GroupTerms {
  ReplicationConfig replication;
  std::string planKey;             ///< in the engine
  std::vector<Address> addresses;  ///< of this daemon, for others
  std::string name;                ///< "psd on node7 (process 4711)", for people
};

/// This daemon's part in its group: asks the engine for the plan, lets a GroupState decide by the rules, and
/// does what it decides. As primary it lets a standby follow; as newcomer it follows the primary, and as
/// standby takes its place.
///
/// Owned by the control loop's thread, on which every method is called.
class GroupMember final : private kj::TaskSet::ErrorHandler {
 public:
  /// The others outlive it. `dial`: how a standby comes to its primary.
  GroupMember(GroupTerms terms, DaemonId me, Engine& engine, GroupHost& host,
              std::shared_ptr<Replicator> replicator, DialPrimary dial, kj::Timer& timer);
  ~GroupMember() noexcept(false);

  /// Begins. `folder`: the state that it would begin with.
  /// `begunAnew`: this process was a daemon of the run before it threw its state away; it ends where the run
  /// has ended meanwhile, in place of beginning another one.
  void start(SavedFolder folder, bool begunAnew = false);
  /// In place of start(), where the model has moved away from here: takes no part, and asks for no plan.
  void startMoved() { life_ = Life::movedAway; }

  /// A daemon asks to follow this one. What it then needs, or why it cannot.
  struct Admitted {
    uint64_t epoch = 0;
    std::shared_ptr<FeedHandle> feed;
    ReplicaFeed::Copy copy;
    std::shared_ptr<Replicator> replicator;
    ReplicationConfig replication;
  };
  Result<Admitted> admit(const FollowerRequest& request, std::shared_ptr<EventLoop> loop);
  /// The feed that admit() gave has ended.
  void feedEnded(const std::shared_ptr<FeedHandle>& feed, const Status& why);

  /// The process is to end and the run goes on: resolves when it may. A primary hands its group over if it
  /// can.
  kj::Promise<void> leave();
  /// The run ends: the standby, where there is one, does so too. Resolves when it knows. An Error: the engine
  /// has not taken it down, so that daemons that are started anew go on with the run.
  kj::Promise<Status> endRun(const std::string& reason);
  /// The model is to be served by others: the plan says so from now on, by a swap from the one that names
  /// this daemon, so that no standby goes on with it. Resolves once it does (true), or never will by this
  /// call (false, or an Error), however long the engine is away. Meanwhile, and for good where it does, this
  /// daemon asks for nothing else.
  kj::Promise<Result<bool>> moveAway(PlannedMove moved);
  /// Where those are reached that serve the model, or may come to.
  std::vector<Address> addressesOfAll() const { return plan_.addressesOfAll(); }
  /// Takes the place of a dead primary with what is here, whatever is lost. Refused where the primary or its
  /// standby answers; both are asked, for `alone_ms` at most.
  kj::Promise<Status> recover();
  /// The standby becomes the primary, and this daemon its standby. Resolves when that is so, or cannot be.
  kj::Promise<Status> switchOver();

  DaemonId me() const { return state_.me(); }
  /// The epoch of the folder's state that this daemon would begin with; 0: none.
  uint64_t folderEpoch() const { return folder_.record ? folder_.record->epoch : 0; }
  /// Where others reach this daemon, as the plan has it.
  const std::vector<Address>& addresses() const { return terms_.addresses; }
  /// The epoch in which this daemon serves; 0: it does not.
  uint64_t serves() const { return serving_; }
  /// Resolves once it serves in an epoch above `known`, gives that, and has followed `primary`, where that is
  /// named. So nobody comes over to the primary of another pair.
  kj::Promise<uint64_t> whenServing(uint64_t known, DaemonId primary);
  /// Why trainers and readers are not let in; they are where it serves().
  Error turnedAway() const;
  GroupStatus status() const;
  /// Where the others of the pair are, as far as is known.
  std::vector<Address> others() const;

 private:
  /// How far the rules have a say.
  enum class Life : uint8_t {
    begins,     ///< the plan is not known yet
    atWork,     ///< they decide
    deciding,   ///< moveAway() is under way: they stand still
    movedAway,  ///< it was, and the plan says that the model has moved; or startMoved()
    runOver,    ///< this daemon served nobody, and nobody's place is to be taken any more: it ends, or tells
                ///< where the model is
  };
  /// Somebody who asked whenServing().
  struct ServingWaiter {
    uint64_t known;
    DaemonId primary;
    kj::Own<kj::PromiseFulfiller<uint64_t>> served;
  };
  /// A call's effect on the rules: what to do.
  using Event = std::function<GroupActions(TimePoint now)>;

  static TimePoint now() { return std::chrono::steady_clock::now(); }
  /// Lets `event` happen to the rules and does what comes of it.
  void happen(const Event& event);

  // What is to be done, by the kinds of GroupAction.
  void act(const group_action::Swap& swap);
  void act(const group_action::Read&);
  void act(const group_action::AnswerUpTo&) {}  // the replicator knows
  void act(const group_action::TellInSync& told);
  void act(const group_action::TellTakeOver& told);
  void act(const group_action::DropStandby& dropped);
  void act(const group_action::CloseGates&);
  void act(const group_action::OpenGates&);
  void act(const group_action::Follow& follow);
  void act(const group_action::CloseReplication&);
  void act(const group_action::TellLeaving&);
  void act(const group_action::Promote& promoted);
  void act(const group_action::Renewed& renewed);
  void act(const group_action::StepDown& down);
  void act(const group_action::Ended& ended);
  void act(const group_action::RunOver&);

  kj::Promise<void> keepTicking();
  void tick();
  kj::Promise<void> keepWatching();
  void learn(const Result<PlanView>& plan);
  /// True once no answer of the engine is waited for; false: not in time.
  kj::Promise<bool> whenNothingAsked(TimePoint until);
  /// Writes down that the run is over, once what the rules have asked for is done, at the latest then.
  kj::Promise<Status> endPlan(TimePoint until);
  kj::Promise<Result<bool>> keepMovingAway(PlannedMove moved, bool told);
  /// The plan says that the model is served by others.
  void becomeMoved();
  /// Nothing is left for which leave() waits.
  void tellLeft();
  kj::Promise<void> retryStart(const Error& error);
  /// Becomes primary where this daemon goes on from what the plan's primary had saved, or its standby.
  void claimWhatIsOurs();
  /// What the follower has said since it was looked at before.
  void listenToFollower();
  void tellHeld();
  /// An error: the daemon answers, or something else does at its address.
  kj::Promise<Status> wouldRefuse(DaemonId daemon, std::string what);
  Status claimAfterAll();
  /// Dials the primary that is to be followed. `onlyToLook`: the copy that is here stays; it is found out
  /// whether the primary lives.
  void dial(bool onlyToLook);
  void beginServing(uint64_t epoch);
  /// What whenServing() waits for.
  bool hasTakenOver(uint64_t known, DaemonId primary) const;
  void connectionEnded(ConnectionEnd how, const Status& ended);
  /// Why the connection to the primary came to its end, where that is what is said.
  Status causeOf(const Status& why) const;
  /// Where the run is over that this daemon follows: it ends, too.
  void endWithRun(const std::string& reason);
  /// The run is over: perhaps as the model has moved, which the primary is heard to say before the plan is.
  kj::Promise<void> learnOfMove();
  /// Where nobody takes over by itself: what people can do.
  Status withAdvice(const Status& primaryDead) const;
  std::string adviceOf(const PlanView& plan) const;
  bool isHere(const std::vector<Address>& addresses) const;
  /// Tells people why this daemon does not follow yet.
  void waitFor(const Status& why);
  /// Logs what it waits for, if no daemon serves or it cannot follow the one that does, and shows it in the
  /// status.
  void tellUndecided();
  std::string undecided() const;
  std::string undecided(const EndedRun& run) const;
  /// "psd recover --server …"
  std::string recoverHere() const;
  /// "the state of epoch 7"
  std::string whatIsHere() const;
  void caughtUp();
  kj::Promise<Status> tellPlanChanged();
  void close(FeedHandle& feed, const std::string& why);
  /// Finds out whether a standby whose connection broke is certainly dead.
  void lookAfter(DaemonId standby, std::vector<Address> addresses);
  kj::Promise<void> whenLastWordSaid();
  void taskFailed(kj::Exception&& exception) override;

  const GroupTerms terms_;
  GroupPlan plan_;
  GroupHost& host_;
  const std::shared_ptr<Replicator> replicator_;
  const DialPrimary dial_;
  kj::Timer& timer_;
  const kj::Own<const kj::Executor> executor_ = kj::getCurrentThreadExecutor().addRef();
  GroupState state_;
  Life life_ = Life::begins;
  TimePoint startedAt_;
  SavedFolder folder_;
  bool mayClaim_ = true;  // the folder may be that of the plan's primary or standby
  bool begunAnew_ = false;
  bool leaving_ = false;  // the process is about to end, in whatever life
  uint64_t serving_ = 0;

  // As primary.
  DaemonId follower_;
  std::string followerName_;
  std::vector<Address> followerAddresses_;
  std::vector<Address> waitingAddresses_;  // of the one that asked to follow last, before there was a model
  std::shared_ptr<FeedHandle> feed_;
  uint64_t feedHeardMs_ = 0;
  std::optional<uint64_t> feedHeld_;  // what the rules know that it holds

  // As standby.
  std::optional<group_action::Follow> following_;
  std::shared_ptr<Follower> copy_;
  bool hasCopy_ = false;
  std::unique_ptr<PrimaryConnection> connection_;
  uint64_t connections_ = 0;  // that were made; events of older ones say nothing
  std::shared_ptr<std::atomic<uint64_t>> heardMs_ = std::make_shared<std::atomic<uint64_t>>(0);
  uint64_t heardTold_ = 0;
  std::chrono::milliseconds dialPause_{0};  // before it dials again
  std::string waitsFor_;                    // for people: why it does not follow yet
  bool undecided_ = false;                  // that is what undecided() says
  std::optional<PeerFolder> peer_;          // of another daemon that waits for the same primary

  double takeoverSeconds_ = 0;  // of the last take-over: from the last sign of the primary until it served
  std::vector<ServingWaiter> servingWaiters_;
  std::set<DaemonId> hasFollowed_;  // primaries, by this process
  kj::Maybe<kj::Own<kj::PromiseFulfiller<void>>> left_;
  kj::Maybe<kj::Own<kj::PromiseFulfiller<Status>>> switched_;
  Mailbox mailbox_;                         // from the connection's thread
  kj::Promise<Status> lastWord_{Status()};  // what a follower is told before this daemon is gone
  Background background_;
  kj::TaskSet tasks_;  // last: its tasks use all of the above
};

}  // namespace psd
