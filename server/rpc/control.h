#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <kj/async.h>
#include <nlohmann/json.hpp>

#include "common/os/env.h"
#include "server/checkpoint/durability.h"
#include "server/config/daemon_config.h"
#include "server/membership/model_start.h"
#include "server/membership/roster.h"
#include "server/metrics/counters.h"
#include "server/rpc/background.h"
#include "server/rpc/served_model.h"

namespace psd {

/// What a trainer gets when it joins.
struct Joined {
  TrainerRef trainer;
  std::shared_ptr<ServedModel> model;
  ModelStart::Role role = ModelStart::Role::wait;
  std::shared_ptr<SessionCounters> counters;
};

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
  /// Saves what `durability` has not saved yet. Blocks; when no update comes any more.
  Status saveLast();

  kj::Promise<Result<Joined>> join(Candidate candidate, ModelSpec model);
  /// Whether the trainer is to bring the values; parked until that is known or the values are there.
  kj::Promise<Result<ModelStart::Role>> awaitModel(SessionId session);
  kj::Promise<Status> initialized(SessionId session);
  void depart(SessionId session, Departure how);
  /// The model for a reader; an empty `model` matches any.
  Result<std::shared_ptr<ServedModel>> observe(const ModelSpec& model) const;

  /// Begins to end; the first reason stands.
  void requestStop(std::string reason);
  bool stopping() const { return stopReason_.has_value(); }
  /// Resolves when requestStop() was called.
  kj::Promise<void> whenStopRequested() { return stopRequested_.addBranch(); }
  /// Resolves with the reason when trainers are to be told.
  kj::Promise<std::string> whenNotified() { return notified_.addBranch(); }
  void notifyTrainers();

  /// Lets the policies do what is due by the clock. Whether any of them goes by it.
  bool tick();
  /// Before adopt(), while no gradient is half there: what trainers wait for happens without waiting for
  /// more.
  kj::Promise<void> settle();
  /// Goes over to a configuration that checkLiveChange() lets pass, while no gradient is under way.
  void adopt(std::shared_ptr<const DaemonConfig> config);
  /// Ends every wait of trainers for each other: nobody can count on the others any more.
  void endWaits();

  std::shared_ptr<ServedModel> model() const { return model_; }
  bool modelReady() const { return model_ && start_.ready(); }

  /// State, model, shards, trainers and counters. The daemon adds what it alone knows.
  nlohmann::ordered_json status() const;

 private:
  struct Session {
    Candidate candidate;
    std::shared_ptr<SessionCounters> counters;
    kj::Maybe<kj::Own<kj::PromiseFulfiller<Result<ModelStart::Role>>>> waiter;
  };

  kj::Promise<Status> provideModel(ModelSpec model);
  Status checkAgainst(const ModelSpec& mine, const char* label, const ModelSpec& theirs) const;
  Result<std::shared_ptr<ServedModel>> build(ModelSpec model) const;
  Policies makePolicies(ParameterStore& store) const;
  nlohmann::ordered_json waiting() const;
  void taskFailed(kj::Exception&& exception) override;
  /// Whether the model has its values and nobody has trained it, so that its tensors' order is nobody's yet.
  bool untrained() const;
  /// The same model with its tensors in a trainer's order. Blocks.
  Result<std::shared_ptr<ServedModel>> reordered(ServedModel& served, ModelSpec trainers) const;
  kj::Promise<Status> serve(std::shared_ptr<ServedModel> model);
  Status resume(const Checkpoint& checkpoint);
  /// What there is to save, now that the model has its values.
  CheckpointSource savingSource() const;
  /// Begins to save it; resolves when what is pushed is safe, or cannot be for now, which the log says.
  kj::Promise<void> beginSaving();
  Result<Joined> admit(const Candidate& candidate);
  void answerWaiter(Session& session, Result<ModelStart::Role> answer);
  Error stoppingError() const;

  std::shared_ptr<const DaemonConfig> config_;
  const std::vector<std::shared_ptr<Backend>> backends_;
  Env& env_;
  DaemonCounters& counters_;
  const std::shared_ptr<StagingPool> staging_;  // of all policies
  Roster roster_;
  ModelStart start_;
  std::shared_ptr<ServedModel> model_;
  std::optional<SessionId> initialized_;    // whose initial values are being made safe
  std::unique_ptr<Durability> durability_;  // from prepareModel() on
  std::map<SessionId, Session> sessions_;
  std::optional<std::string> stopReason_;
  kj::PromiseFulfillerPair<void> stopPair_ = kj::newPromiseAndFulfiller<void>();
  kj::ForkedPromise<void> stopRequested_;
  kj::PromiseFulfillerPair<std::string> noticePair_ = kj::newPromiseAndFulfiller<std::string>();
  kj::ForkedPromise<std::string> notified_;
  kj::Maybe<kj::ForkedPromise<Status>> building_;  // while a model is being made
  Background background_;
  kj::TaskSet tasks_;  // what policies do after a departure or by the clock
};

}  // namespace psd
