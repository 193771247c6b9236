#include "server/rpc/control.h"

#include <algorithm>
#include <chrono>
#include <random>

#include <kj/debug.h>
#include <spdlog/spdlog.h>

namespace psd {
namespace {

/// The same tensors, perhaps in another order.
bool sameTensors(const ModelSpec& a, const ModelSpec& b) {
  auto sorted = [](const ModelSpec& model) {
    auto tensors = model.tensors;
    std::sort(tensors.begin(), tensors.end(),
              [](const TensorSpec& x, const TensorSpec& y) { return x.name < y.name; });
    return tensors;
  };
  return sorted(a) == sorted(b);
}

/// Never 0, which stands for none.
uint64_t drawDaemonId() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;
}

}  // namespace

Control::Control(std::shared_ptr<const DaemonConfig> config, std::vector<std::shared_ptr<Backend>> backends,
                 Env& env, DaemonCounters& counters)
    : config_(std::move(config)),
      backends_(std::move(backends)),
      env_(env),
      counters_(counters),
      staging_(makeGradientPool(config_->limits.stagedBytes)),
      roster_(config_->worldSize ? Roster(config_->worldSize->max, config_->worldSize->min) : Roster()),
      leases_({std::chrono::milliseconds(config_->membership.leaseMs),
               std::chrono::milliseconds(config_->membership.graceMs)}),
      daemonId_(drawDaemonId()),
      stopRequested_(stopPair_.promise.fork()),
      notified_(noticePair_.promise.fork()),
      outcome_(outcomePair_.promise.fork()),
      tasks_(*this) {
  limitStaged();
}

void Control::limitStaged() {
  staging_->setLentBytesMax(config_->limits.stagedBytes);
  for (const auto& backend : backends_) backend->limitStaged(config_->limits.stagedBytes);
}

void Control::taskFailed(kj::Exception&& exception) {
  spdlog::error("a policy's work failed: {}", exception.getDescription().cStr());
}

Status Control::prepareModel() {
  PSD_ASSIGN_OR_RETURN(durability_, Durability::open(env_, config_->durability));
  PSD_ASSIGN_OR_RETURN(const std::optional<Checkpoint> checkpoint, durability_->find());
  if (checkpoint) return resume(*checkpoint);
  if (!config_->model) return {};
  ModelSpec spec = config_->model->spec;
  if (config_->model->file.empty()) {
    PSD_ASSIGN_OR_RETURN(model_, build(std::move(spec)));
    return {};
  }
  PSD_ASSIGN_OR_RETURN(const SafetensorsReader file, SafetensorsReader::open(env_, config_->model->file));
  const std::string name = spec.name;
  spec = file.model();
  if (!name.empty()) spec.name = name;
  PSD_ASSIGN_OR_RETURN(
      model_, build(std::move(spec), [&](ParameterStore& store) { return loadParameters(file, store); }));
  start_ = ModelStart(true);
  static_cast<void>(durability_->begin(savingSource()));  // a failure is in the log, and tried again
  return {};
}

std::shared_ptr<UpdatePolicy> Control::makePolicy(ParameterStore& store, uint32_t group, bool started) const {
  return config_->groups[group].policy.plan.make({store, group, staging_, started});
}

Status Control::resume(const Checkpoint& checkpoint) {
  const ModelSpec& saved = checkpoint.manifest.model;
  const bool given = config_->model && config_->model->file.empty();
  PSD_ASSIGN_OR_RETURN(model_, build(given ? config_->model->spec : saved, [&](ParameterStore& store) {
                         return durability_->restore(checkpoint, store);
                       }));
  start_ = ModelStart(true);
  for (size_t i = 0; i < model_->store->shardCount(); i++) saved_.push_back(model_->store->shard(i).pushes());
  spdlog::info("going on from checkpoint '{}' of {}: model '{}', shard 0 at version {}", checkpoint.path,
               checkpoint.manifest.created, saved.name, model_->store->shard(0).version().value);
  recallPlan();
  static_cast<void>(durability_->begin(savingSource()));  // a failure is in the log, and tried again
  return {};
}

CheckpointSource Control::savingSource() const {
  CheckpointSource source;
  source.store = std::shared_ptr<ParameterStore>(model_, model_->store.get());
  source.groups = [model = model_] {
    std::vector<CheckpointSource::Group> groups;
    for (const auto& policy : model->policies()) {
      auto rest = [policy] { return policy->rest().attach(std::shared_ptr(policy)); };
      groups.push_back({std::string(policy->name()), policy->readsLive(), std::move(rest)});
    }
    return groups;
  };
  return source;
}

kj::Promise<void> Control::beginSaving() {
  return background_.run<Status>([this, source = savingSource()] { return durability_->begin(source); })
      .ignoreResult();  // a failure is in the log, and tried again
}

Status Control::saveLast() {
  savedLast_ = true;
  if (config_->exitWhenDone && roster_.everyoneDone()) closeFinishedPlan();
  return durability_->finish();
}

Status Control::closeRun() {
  return config_->exitWhenDone && roster_.everyoneDone() ? durability_->forgetDeparted() : Status();
}

Result<std::shared_ptr<ServedModel>> Control::build(
    ModelSpec model, const std::function<Status(ParameterStore&)>& fill) const {
  StoreGroups groups;
  PSD_ASSIGN_OR_RETURN(groups.groupOfTensor, assignGroups(model, config_->groups));
  for (const GroupConfig& group : config_->groups) groups.optimizers.push_back(group.optimizer);
  const auto bySize = std::max<uint32_t>(ShardPlan::countFor(ModelLayout(model).totalElements()),
                                         static_cast<uint32_t>(backends_.size()));
  PSD_ASSIGN_OR_RETURN(auto store, ParameterStore::create(std::move(model), config_->shards.value_or(bySize),
                                                          backends_, groups));
  if (fill) PSD_RETURN_IF_ERROR(fill(*store));
  Policies policies;
  for (uint32_t i = 0; i < config_->groups.size(); i++) policies.push_back(makePolicy(*store, i, false));
  return std::make_shared<ServedModel>(std::move(store), std::move(policies));
}

bool Control::untrained() const {
  if (!modelReady() || counters_.trainersJoined.value() > 0) return false;
  const ParameterStore& store = *model_->store;
  for (size_t i = 0; i < store.shardCount(); i++) {
    if (store.shard(i).version().value > 0) return false;
  }
  return true;
}

Result<std::shared_ptr<ServedModel>> Control::reordered(ServedModel& served, ModelSpec trainers) const {
  return build(std::move(trainers),
               [&](ParameterStore& store) { return copyParameters(*served.store, store); });
}

Status Control::checkAgainst(const ModelSpec& mine, const char* label, const ModelSpec& theirs) const {
  if (mine.signature() == theirs.signature()) return {};
  return {ErrorCode::modelMismatch,
          "the model does not match: " + describeDifference(theirs, "the trainer's model", mine, label)};
}

bool Control::serves(const ModelSpec& model) const {
  return model_ && model_->store->model().signature() == model.signature();
}

kj::Promise<Status> Control::provideModel(ModelSpec model) {
  KJ_IF_MAYBE (building, building_) {
    // Somebody else's model is being made; look again when it stands.
    return building->addBranch().then(
        [this, model = std::move(model)](Status) mutable { return provideModel(std::move(model)); });
  }
  if (model_) {
    const ModelSpec& mine = model_->store->model();
    // A file's tensors come in the file's order, and so do those of a checkpoint that was taken before
    // anybody trained; the first trainer's order is the one to serve, unless the configuration lists the
    // tensors.
    const bool listed = config_->model && config_->model->file.empty();
    const bool reorder =
        !listed && untrained() && mine.signature() != model.signature() && sameTensors(mine, model);
    if (!reorder) return checkAgainst(mine, "the daemon's", model);
  } else if (config_->limits.modelBytes != 0 &&
             model.parameterCount() * sizeof(float) > config_->limits.modelBytes) {
    return Status(ErrorCode::overloaded,
                  "the model's weights take " + std::to_string(model.parameterCount() * sizeof(float)) +
                      " bytes; limits.model_bytes is " + std::to_string(config_->limits.modelBytes));
  }
  auto made =
      background_
          .run<Result<std::shared_ptr<ServedModel>>>([this, served = model_, model = std::move(model)] {
            return served ? reordered(*served, model) : build(model);
          })
          .then([this](Result<std::shared_ptr<ServedModel>> served) -> kj::Promise<Status> {
            return served.ok() ? serve(std::move(*served)) : Status(served.error());
          })
          .then([this](Status status) {
            building_ = nullptr;
            return status;
          })
          .fork();
  auto mine = made.addBranch();
  building_ = kj::mv(made);
  return mine;
}

kj::Promise<Status> Control::serve(std::shared_ptr<ServedModel> model) {
  model_ = std::move(model);
  const ParameterStore& store = *model_->store;
  spdlog::info("serving model '{}': {} parameters in {} tensors, {} shards on {}", store.model().name,
               store.model().parameterCount(), store.model().tensors.size(), store.shardCount(),
               store.describeDevices());
  if (!start_.ready()) return Status();
  return beginSaving().then([] { return Status(); });
}

kj::Promise<Result<Joined>> Control::join(Candidate candidate, std::vector<HeldSamples> held, ModelSpec model,
                                          std::shared_ptr<EventLoop> loop) {
  if (stopping()) return Result<Joined>(stoppingError());
  if (model.tensors.empty()) {
    return Result<Joined>(ErrorCode::invalidArgument, "a trainer's model has at least one tensor");
  }
  return provideModel(model).then(
      [this, candidate = std::move(candidate), held = std::move(held), model = std::move(model),
       loop = std::move(loop)](Status status) mutable -> kj::Promise<Result<Joined>> {
        // Until now it may have gone again, with the last of those who had joined.
        if (status.ok() && !serves(model)) {
          return join(std::move(candidate), std::move(held), std::move(model), std::move(loop));
        }
        Result<Joined> joined = status.ok() ? admit(candidate, held, loop) : Result<Joined>(status.error());
        if (!joined.ok()) {
          spdlog::warn("refused rank {} (process {} on {}): {}", candidate.rank.value, candidate.pid,
                       candidate.host, joined.message());
          return joined;
        }
        return whenDepartedKept().then([joined = std::move(joined)] { return joined; });
      });
}

kj::Promise<Result<ModelStart::Role>> Control::awaitModel(SessionId session) {
  using Role = ModelStart::Role;
  if (stopping()) return Result<Role>(stoppingError());
  if (start_.ready()) return Result<Role>(Role::go);
  if (start_.bringer() == session) return Result<Role>(Role::bringValues);
  auto entry = sessions_.find(session);
  if (entry == sessions_.end()) return Result<Role>(ErrorCode::notReady, "the session has ended");
  auto waiter = kj::newPromiseAndFulfiller<Result<Role>>();
  entry->second.waiter = kj::mv(waiter.fulfiller);
  return kj::mv(waiter.promise);
}

void Control::answerWaiter(Session& session, Result<ModelStart::Role> answer) {
  KJ_IF_MAYBE (waiter, session.waiter) {
    (*waiter)->fulfill(std::move(answer));
    session.waiter = nullptr;
  }
}

kj::Promise<Status> Control::initialized(SessionId session) {
  if (!start_.complete(session)) {
    return Status(ErrorCode::invalidArgument, "this trainer was not asked for the initial values");
  }
  return beginSaving().then([this] {
    start_.open();
    spdlog::info("the model has its initial values");
    for (auto& [id, waiting] : sessions_) answerWaiter(waiting, ModelStart::Role::go);
    return Status();
  });
}

Result<std::shared_ptr<ServedModel>> Control::observe(const ModelSpec& model) const {
  if (stopping()) return stoppingError();
  if (!modelReady()) {
    return Error{ErrorCode::notReady,
                 "the daemon has no model yet; a trainer brings it, or `model.file` in its config"};
  }
  if (!model.tensors.empty()) {
    PSD_RETURN_IF_ERROR(checkAgainst(model_->store->model(), "the daemon's", model));
  }
  return model_;
}

void Control::requestStop(std::string reason) {
  if (stopping()) return;
  spdlog::info("stopping: {}", reason);
  stopReason_ = std::move(reason);
  for (auto& [id, session] : sessions_) {
    answerWaiter(session, stoppingError());
    if (session.wish) answerWish(id, session, stoppingError());
  }
  endDisconnected();
  stopPair_.fulfiller->fulfill();
}

bool Control::tick() {
  if (!model_) return false;
  bool any = false;
  for (const auto& policy : model_->policies()) {
    if (!policy->ticks()) continue;
    any = true;
    tasks_.add(policy->tick(std::chrono::steady_clock::now()).attach(std::shared_ptr(policy)));
  }
  return any;
}

void Control::endWaits() {
  if (!model_) return;
  for (const auto& policy : model_->policies()) policy->endWaits(stoppingError());
}

kj::Promise<void> Control::settle(const std::vector<bool>& keepPolicies) {
  if (!model_) return kj::READY_NOW;
  const Policies policies = model_->policies();
  auto settled = kj::heapArrayBuilder<kj::Promise<void>>(policies.size());
  for (size_t i = 0; i < policies.size(); i++) {
    auto done = keepPolicies[i] ? policies[i]->rest() : policies[i]->settle();
    settled.add(done.attach(std::shared_ptr(policies[i])));
  }
  return kj::joinPromises(settled.finish());
}

void Control::adopt(std::shared_ptr<const DaemonConfig> config, const std::vector<bool>& keepPolicies) {
  config_ = std::move(config);
  limitStaged();
  if (!model_) return;
  ParameterStore& store = *model_->store;
  for (uint32_t i = 0; i < config_->groups.size(); i++) store.setOptimizer(i, config_->groups[i].optimizer);
  const Policies before = model_->policies();
  Policies after = before;
  bool live = true;
  for (uint32_t i = 0; i < after.size(); i++) {
    if (!keepPolicies[i]) {
      const bool started = counters_.trainersJoined.value() > 0 && before[i]->started();
      after[i] = makePolicy(store, i, started);
      for (const auto& [session, entry] : sessions_) {
        if (entry.wish) continue;  // nobody waits for it
        tasks_.add(after[i]
                       ->join({session, entry.candidate.rank, entry.candidate.incarnation})
                       .attach(std::shared_ptr(after[i])));
      }
    }
    live = live && after[i]->readsLive();
  }
  store.setSharedReadable(live);
  model_->setPolicies(after);
  for (size_t i = 0; i < before.size(); i++) {
    if (!keepPolicies[i]) before[i]->retire();
  }
}

void Control::notifyTrainers() { noticePair_.fulfiller->fulfill(std::string(*stopReason_)); }

Error Control::stoppingError() const {
  return {ErrorCode::shuttingDown, "the daemon is shutting down: " + stopReason_.value_or("")};
}

}  // namespace psd
