#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <kj/async.h>
#include <kj/timer.h>

#include "common/os/env.h"
#include "server/checkpoint/durability.h"
#include "server/config/daemon_config.h"
#include "server/control/daemon_end.h"
#include "server/control/sample_dealer.h"
#include "server/limits/memory_budgets.h"
#include "server/loop/background.h"
#include "server/membership/leases.h"
#include "server/membership/model_start.h"
#include "server/membership/roster.h"
#include "server/membership/session_epoch.h"
#include "server/metrics/counters.h"
#include "server/model/model_host.h"

namespace psd {

class EventLoop;
class PushServer;

/// What a trainer gets when it joins.
struct Joined {
  TrainerRef trainer;
  std::shared_ptr<ServedModel> model;
  ModelStart::Role role = ModelStart::Role::wait;
  std::shared_ptr<SessionCounters> counters;
  std::shared_ptr<const SessionEpoch> epoch;
  uint32_t attachment = 0;  ///< of this connection
  std::shared_ptr<PushServer> pushes;
  uint32_t worldSize = 0;
  uint64_t daemonId = 0;
  bool resumed = false;   ///< the session of before goes on
  bool further = false;   ///< this is one more connection beside the one that joined
  std::string codec;      ///< agreed for pushes, with its options
  std::string pullCodec;  ///< agreed for pulls, with its options
};

/// How a trainer that has joined asks for one more connection.
struct AttachRequest {
  Rank rank;
  uint64_t incarnation = 0;
  uint32_t attachment = 0;  ///< Joined::attachment of its join
};

/// Stands, in leases, for all trainers that were in when a daemon before this one died. Sessions are numbered
/// from 1.
inline constexpr SessionId kPriorRunTrainers{0};

/// The daemon's memory of who is in and whether it is ending. All decisions that are not on the data path are
/// made here, or by what it holds: of the model by a ModelHost, of samples by a SampleDealer.
///
/// Owned by the control loop's thread, on which every method is called; other loops come through
/// EventLoop::onControl().
class Control final {
 public:
  Control(std::shared_ptr<const DaemonConfig> config, std::vector<std::shared_ptr<Backend>> backends,
          Env& env, DaemonMetrics& counters, const MemoryBudgets& budgets);

  /// Goes on from a checkpoint, or loads or allocates the model that the config names; with exit_when_done
  /// recalls who has come and gone already, as far as a daemon before this one kept it, and begins to end
  /// where those are all. Blocks; before anything else.
  Status prepare();
  /// Whether the devices, and the trainers that are in, could do what the policies of `config` ask for.
  Status mayFollow(const DaemonConfig& config) const;
  /// Resolves once who has come and gone is kept as of now, or cannot be, which the log says.
  kj::Promise<void> whenFinishedRanksKept() { return finishedRanksKept_.addBranch(); }
  /// Saves what `durability` has not saved yet. Blocks; when no update comes any more.
  Status saveLast();
  /// All is saved: with exit_when_done, and everybody done, the next daemon begins a run of its own. After an
  /// end in the midst of a run it goes on with this one. Blocks.
  Status closeRun();

  /// `loop`: the caller's, on which this trainer's pushes are worked on from now on.
  /// `held`: samples that it was dealt, maybe by a daemon before, and not told what became of their
  /// gradients.
  kj::Promise<Result<Joined>> join(Candidate candidate, std::vector<HeldSamples> held, ModelSpec model,
                                   std::shared_ptr<EventLoop> loop);
  Result<Joined> attach(const AttachRequest& request);
  /// Whether the trainer is to bring the values; parked until that is known or the values are there.
  kj::Promise<Result<ModelStart::Role>> awaitModel(SessionId session);
  kj::Promise<Status> initialized(SessionId session);
  /// The trainer said goodbye; resolves once a daemon after this one would know.
  kj::Promise<void> leave(SessionId session);
  /// The trainer's connection is gone; so is the trainer, unless it comes back within membership.grace_ms.
  void disconnected(SessionId session, uint32_t attachment);
  /// Ends the sessions of trainers whose lease or grace has run out, as long as the promise lives.
  kj::Promise<void> watchLeases(kj::Timer& timer);
  /// Deals samples, see Trainer.takeSamples in the schema.
  kj::Promise<Result<Samples>> takeSamples(SessionId session, SamplesRequest request);
  /// The model for a reader; an empty `model` matches any.
  Result<std::shared_ptr<ServedModel>> observe(const ModelSpec& model) const;

  /// Begins to end the daemon, see DaemonEnd::request(): answers what waits here.
  void requestStop(std::string reason, EndOf what = EndOf::run);
  DaemonEnd& end() { return end_; }
  const DaemonEnd& end() const { return end_; }

  /// Ends every wait of trainers for each other: nobody can count on the others any more.
  void endWaits() { models_->endWaits(end_.error()); }
  /// The daemon ends: nobody is waited for to come back.
  void endDisconnected();
  /// Goes over to another configuration, see ModelHost::adopt().
  void adopt(std::shared_ptr<const DaemonConfig> config, const std::vector<bool>& keepPolicies);

  /// From prepare() on.
  ModelHost& models() { return *models_; }
  SampleDealer& samples() { return *samples_; }
  /// State, model, shards, trainers, what is saved and the metrics. The daemon adds what it alone knows.
  void fillStatus(DaemonStatus& status) const;

 private:
  struct Session;
  TrainerStatus trainerStatus(SessionId id, const Session& session) const;
  /// One life of one rank, which may span sessions: the process was counted as gone and came back.
  struct Life {
    LifeId id;
    uint64_t incarnation = 0;
    std::shared_ptr<SessionCounters> counters;
    std::shared_ptr<PushServer> pushes;  // knows what was pushed
  };
  struct Session {
    Candidate candidate;
    Life life;
    std::shared_ptr<SessionEpoch> epoch = std::make_shared<SessionEpoch>();
    uint64_t heardMs = 0;  // counters->lastSeenMs when it was last looked at
    kj::Maybe<kj::Own<kj::PromiseFulfiller<Result<ModelStart::Role>>>> waiter;
  };

  Result<Joined> admit(Candidate candidate, const std::vector<HeldSamples>& held,
                       const std::shared_ptr<EventLoop>& loop);
  /// Goes on with a trainer's session over its new connection.
  Result<Joined> resume(SessionId session, const Candidate& candidate);
  Joined describe(SessionId session, ModelStart::Role role);
  /// Whether the rank's last life is the candidate's.
  bool goesOnWith(const Candidate& candidate) const;
  /// The life that the candidate goes on with, or a new one in place of the rank's last.
  Life lifeOf(const Candidate& candidate, const std::shared_ptr<EventLoop>& loop);
  /// Drops the model if nobody is in and it never got its values.
  void dropUnclaimed();
  /// Ends a session as forget() does, and what nobody needs then: a model without values, a finished plan of
  /// samples, the run. `why` completes "rank 3 … is lost after 5 steps: ".
  void depart(SessionId session, Departure how, const std::string& why);
  /// Ends a session and frees its rank, without what depart() does besides. `why`: see depart().
  void forget(SessionId session, Departure how, const std::string& why);
  /// With exit_when_done: takes up which trainers have come and gone, as a daemon before this one kept it.
  /// Blocks.
  void restoreFinishedRanks(const std::optional<Departed>& before);
  /// Begins to keep who has come and gone, if that changed, and then to end if those are all.
  void keepFinishedRanks();
  void endIfDone();
  /// Whether everybody is done, and no other daemon is to find that out.
  bool runIsOver() const { return config_->exitWhenDone && roster_.everyoneDone() && !end_.restarting(); }
  void lookAtLeases();
  /// Nobody waits any longer for trainers that were in when a daemon before this one died.
  void giveUpPriorRunTrainers();
  /// Frees a rank when all are taken: ends the session of a trainer that is not connected.
  void endOneDisconnected();
  void endExpired();
  void answerWaiter(Session& session, Result<ModelStart::Role> answer);

  std::shared_ptr<const DaemonConfig> config_;
  const std::vector<std::shared_ptr<Backend>> backends_;
  Env& env_;
  DaemonMetrics& counters_;
  const MemoryBudgets& budgets_;
  Roster roster_;
  Leases leases_;
  // From prepare() on.
  std::unique_ptr<Durability> durability_;
  std::unique_ptr<ModelHost> models_;
  std::unique_ptr<SampleDealer> samples_;
  std::map<SessionId, Session> sessions_;
  std::map<Rank, Life> lives_;  // the newest of each rank
  uint64_t lastLife_ = 0;
  const uint64_t daemonId_;
  DaemonEnd end_;
  kj::PromiseFulfillerPair<void> ranksPair_ = kj::newPromiseAndFulfiller<void>();
  kj::ForkedPromise<void> ranksGivenUp_;  // nobody waits any more for trainers of a daemon before
  std::set<Rank> keptFinishedRanks_;      // by whenFinishedRanksKept()
  kj::ForkedPromise<void> finishedRanksKept_ = kj::Promise<void>(kj::READY_NOW).fork();
  bool savedLast_ = false;
  Background background_;
};

}  // namespace psd
