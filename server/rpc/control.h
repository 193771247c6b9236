#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <kj/async.h>
#include <kj/timer.h>
#include <nlohmann/json.hpp>

#include "common/os/env.h"
#include "server/checkpoint/durability.h"
#include "server/config/daemon_config.h"
#include "server/membership/batch_sizes.h"
#include "server/membership/leases.h"
#include "server/membership/model_start.h"
#include "server/membership/roster.h"
#include "server/membership/sample_plan.h"
#include "server/metrics/counters.h"
#include "server/rpc/background.h"
#include "server/rpc/served_model.h"
#include "server/store/applied_push.h"

namespace psd {

class EventLoop;
class PushServer;

/// Whether a session still stands. Written by the control loop, read by the loops; thread-safe.
struct SessionStanding {
  static constexpr uint32_t kEnded = 0;
  /// Which of the connections that the trainer had is the session's; the calls of others are refused.
  std::atomic<uint32_t> attachment{1};
};

/// What a trainer gets when it joins.
struct Joined {
  TrainerRef trainer;
  std::shared_ptr<ServedModel> model;
  ModelStart::Role role = ModelStart::Role::wait;
  std::shared_ptr<SessionCounters> counters;
  std::shared_ptr<const SessionStanding> standing;
  uint32_t attachment = 0;  ///< of this connection
  std::shared_ptr<PushServer> pushes;
  uint32_t worldSize = 0;
  uint64_t daemonId = 0;
  bool resumed = false;   ///< the session of before goes on
  bool further = false;   ///< this is one more connection beside the one that joined
  std::string codec;      ///< of pushes, as agreed, with its options …
  std::string pullCodec;  ///< … and of pulls
};

/// How a trainer that has joined asks for one more connection.
struct AttachWish {
  Rank rank;
  uint64_t incarnation = 0;
  uint32_t attachment = 0;  ///< Joined::attachment of its join
};

/// A trainer that asks for samples.
struct SamplesWish {
  Step step;
  uint32_t count = 0;  ///< at most
  uint64_t samples = 0, epochs = 0, firstEpoch = 0;
  bool wait = false;
  uint32_t nominal = 0;      ///< of a trainer whose number of samples the daemon chooses; else 0
  double sampleSeconds = 0;  ///< likewise
};

/// What it gets: a range, or none, now or for good.
struct Samples {
  std::optional<SampleRange> range;
  bool finished = false;
};

/// Stands, in leases, for all trainers that were in when a daemon before this one died. Sessions are numbered
/// from 1.
inline constexpr SessionId kThoseBefore{0};

/// The daemon's memory of who is in, which model is served and whether it is ending. All decisions that are
/// not on the data path are made here.
///
/// Owned by the control loop's thread, on which every method is called; other loops come through
/// EventLoop::onControl().
class Control final : private kj::TaskSet::ErrorHandler {
 public:
  Control(std::shared_ptr<const DaemonConfig> config, std::vector<std::shared_ptr<Backend>> backends,
          Env& env, DaemonCounters& counters);

  /// Goes on from a checkpoint, or loads or allocates the model that the config names. Blocks; before any
  /// trainer.
  Status prepareModel();
  /// With exit_when_done: who has come and gone already, as far as a daemon before this one kept it. Begins
  /// to end where those are all. Blocks; after prepareModel().
  void recallDeparted();
  /// Resolves once that is kept as of now, or cannot be, which the log says.
  kj::Promise<void> whenDepartedKept() { return departedKept_.addBranch(); }
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
  Result<Joined> attach(const AttachWish& wish);
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
  kj::Promise<Result<Samples>> takeSamples(SessionId session, SamplesWish wish);
  /// The gradient of a step is answered: applied, to some shards at least, or dropped.
  void stepOver(SessionId session, Step step, bool applied);
  /// The model for a reader; an empty `model` matches any.
  Result<std::shared_ptr<ServedModel>> observe(const ModelSpec& model) const;

  /// Begins to end; the first reason stands.
  void requestStop(std::string reason);
  bool stopping() const { return stopReason_.has_value(); }
  /// Resolves when requestStop() was called.
  kj::Promise<void> whenStopRequested() { return stopRequested_.addBranch(); }
  /// Resolves with what came of the daemon's last work, saving, when that is over.
  kj::Promise<Status> whenOutcome() { return outcome_.addBranch(); }
  void tellOutcome(Status outcome) { outcomePair_.fulfiller->fulfill(std::move(outcome)); }
  /// Resolves with the reason when trainers are to be told.
  kj::Promise<std::string> whenNotified() { return notified_.addBranch(); }
  void notifyTrainers();

  /// Lets the policies do what is due by the clock. Whether any of them goes by it.
  bool tick();
  /// Before adopt(), while no gradient begins or is half there: nothing is being applied any more, and what
  /// trainers wait for under policies that are to go happens without waiting for more.
  kj::Promise<void> settle(const std::vector<bool>& keepPolicies);
  /// Goes over to a configuration that checkLiveChange() lets pass; after settle(). `keepPolicies`: the
  /// groups whose policies stay, with all that they know.
  void adopt(std::shared_ptr<const DaemonConfig> config, const std::vector<bool>& keepPolicies);
  /// Ends every wait of trainers for each other: nobody can count on the others any more.
  void endWaits();

  std::shared_ptr<ServedModel> model() const { return model_; }
  bool modelReady() const { return model_ && start_.ready(); }

  /// State, model, shards, trainers and counters. The daemon adds what it alone knows.
  nlohmann::ordered_json status() const;

 private:
  /// One life of one rank, which may span sessions: the process was counted as gone and came back.
  struct Life {
    uint64_t incarnation = 0;
    std::shared_ptr<SessionCounters> counters;
    std::shared_ptr<PushServer> pushes;  // knows what was pushed
  };
  struct Session {
    Candidate candidate;
    Life life;
    std::shared_ptr<SessionStanding> standing = std::make_shared<SessionStanding>();
    uint64_t heardMs = 0;  // counters->lastSeenMs when it was last looked at
    kj::Maybe<kj::Own<kj::PromiseFulfiller<Result<ModelStart::Role>>>> waiter;
    bool takesSamples = false;        // it has asked for some
    std::optional<SamplesWish> wish;  // while it waits for samples, and the policies do not for it
    kj::Maybe<kj::Own<kj::PromiseFulfiller<Result<Samples>>>> forSamples;
  };

  bool serves(const ModelSpec& model) const;
  kj::Promise<Status> provideModel(ModelSpec model);
  Status checkAgainst(const ModelSpec& mine, const char* label, const ModelSpec& theirs) const;
  /// A store for the model, given its values by `fill`, and only then its policies, which count from there.
  Result<std::shared_ptr<ServedModel>> build(ModelSpec model,
                                             const std::function<Status(ParameterStore&)>& fill = {}) const;
  std::shared_ptr<UpdatePolicy> makePolicy(ParameterStore& store, uint32_t group, bool started) const;
  nlohmann::ordered_json waiting() const;
  void taskFailed(kj::Exception&& exception) override;
  /// Whether the model has its values and nobody has trained it, so that its tensors' order is nobody's yet.
  bool untrained() const;
  /// The same model with its tensors in a trainer's order. Blocks.
  Result<std::shared_ptr<ServedModel>> reordered(ServedModel& served, ModelSpec trainers) const;
  kj::Promise<Status> serve(std::shared_ptr<ServedModel> model);
  /// Goes on from a checkpoint.
  Status resume(const Checkpoint& checkpoint);
  /// What there is to save, now that the model has its values.
  CheckpointSource savingSource() const;
  /// Begins to save it; resolves when what is pushed is safe, or cannot be for now, which the log says.
  kj::Promise<void> beginSaving();
  Result<Joined> admit(Candidate candidate, const std::vector<HeldSamples>& held,
                       const std::shared_ptr<EventLoop>& loop);
  /// Goes on with a trainer's session over its new connection.
  Result<Joined> resume(SessionId session, const Candidate& candidate);
  Joined describe(SessionId session, ModelStart::Role role);
  /// What was saved of the pushes of a life.
  std::vector<std::optional<AppliedPush>> savedOf(Rank rank, uint64_t incarnation) const;
  /// The life that the candidate goes on with, or a new one in place of the rank's last.
  Life lifeOf(const Candidate& candidate, const std::shared_ptr<EventLoop>& loop);
  /// `why` completes "rank 3 … is lost after 5 steps: ".
  void depart(SessionId session, Departure how, const std::string& why);
  /// The same without what follows when nobody is in any more.
  void forget(SessionId session, Departure how, const std::string& why);
  /// Begins to keep who has come and gone, if that changed, and then to end if those are all.
  void keepDeparted();
  void endIfDone();
  void lookAtLeases();
  /// All ranks are taken: one that is not connected gives way.
  void endOneDisconnected();
  /// The daemon ends: nobody is waited for to come back.
  void endDisconnected();
  void endExpired();
  void answerWaiter(Session& session, Result<ModelStart::Role> answer);
  Status agreeOnSamples(SessionId session, const SamplesWish& wish);
  /// How many samples a trainer is to get, if there are as many.
  Result<uint32_t> countFor(SessionId session, const SamplesWish& wish);
  /// What there is for a trainer now; nothing where it would have to wait. `wish.count` is what it is to get.
  std::optional<Samples> samplesFor(SessionId session, const SamplesWish& wish);
  /// A trainer joins with samples from before: goes on with them, or drops what it pushes of them.
  void recallSamples(SessionId session, const std::vector<HeldSamples>& held);
  /// Nobody waits any longer for trainers that were in when the daemon before this one died.
  void giveUpThoseBefore();
  /// A plan that was saved is there: what was dealt by it waits for those who have it.
  void recallPlan();
  /// Who comes from now on begins a plan of its own, if this one is finished.
  void closeFinishedPlan();
  /// Answers those who wait for samples, as far as there are some.
  void dealSamples();
  void answerWish(SessionId session, Session& entry, Result<Samples> answer);
  /// What was dealt to a trainer that is gone, once its last pushes are answered.
  void takeSamplesBack(SessionId session, const std::shared_ptr<PushServer>& pushes);
  void joinPolicies(const TrainerRef& trainer);
  void leavePolicies(SessionId session);
  Error stoppingError() const;
  /// Bounds gathered gradients as the configuration says, here and on the devices.
  void limitStaged();

  std::shared_ptr<const DaemonConfig> config_;
  const std::vector<std::shared_ptr<Backend>> backends_;
  Env& env_;
  DaemonCounters& counters_;
  const std::shared_ptr<StagingPool> staging_;  // of all policies
  Roster roster_;
  Leases leases_;
  ModelStart start_;
  BatchSizes batchSizes_;
  std::shared_ptr<ServedModel> model_;
  std::unique_ptr<Durability> durability_;  // from prepareModel() on
  std::map<SessionId, Session> sessions_;
  std::map<Rank, Life> lives_;  // the newest of each rank
  std::vector<std::vector<AppliedPush>>
      saved_;  // by shard, the trainers' pushes that were there at the start
  const uint64_t daemonId_;
  std::optional<std::string> stopReason_;
  kj::PromiseFulfillerPair<void> stopPair_ = kj::newPromiseAndFulfiller<void>();
  kj::ForkedPromise<void> stopRequested_;
  kj::PromiseFulfillerPair<std::string> noticePair_ = kj::newPromiseAndFulfiller<std::string>();
  kj::ForkedPromise<std::string> notified_;
  kj::PromiseFulfillerPair<Status> outcomePair_ = kj::newPromiseAndFulfiller<Status>();
  kj::ForkedPromise<Status> outcome_;
  kj::Maybe<kj::ForkedPromise<Status>> building_;  // while a model is being made
  std::set<Rank> keptDeparted_;                    // by whenDepartedKept()
  kj::ForkedPromise<void> departedKept_ = kj::Promise<void>(kj::READY_NOW).fork();
  bool savedLast_ = false;
  Background background_;
  kj::TaskSet tasks_;  // what policies do after a departure or by the clock
};

}  // namespace psd
