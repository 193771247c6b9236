#include "server/model/model_host.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "common/text/text.h"
#include "common/types/bridge.h"
#include "server/checkpoint/replay.h"
#include "server/model/make_store.h"
#include "server/model/slice_checks.h"
#include "server/model/trainers_optimizer.h"
#include "server/optimizer/optimizer_config.h"
#include "server/policy/policy_capabilities.h"
#include "server/store/derived_weights.h"

namespace psd {
namespace {

constexpr std::string_view kBenchModel = "bench";  // the model of psd-trainer bench

/// Whether both models have the same tensors, in any order.
bool sameTensors(const ModelSpec& a, const ModelSpec& b) {
  auto sorted = [](const ModelSpec& model) {
    auto tensors = model.tensors;
    std::sort(tensors.begin(), tensors.end(),
              [](const TensorSpec& x, const TensorSpec& y) { return x.name < y.name; });
    return tensors;
  };
  return sorted(a) == sorted(b);
}

/// The number of trainers whose gradients made the block's newest version.
uint32_t trainersOfNewestVersion(const ParameterBlock& block) {
  std::set<Rank> ranks;
  for (const PushedRange& range : block.pushed().ranges()) {
    for (const AppliedPush& push : range.pushes) {
      if (push.version == block.version() && !isBridge(push.rank)) ranks.insert(push.rank);
    }
  }
  return static_cast<uint32_t>(ranks.size());
}

}  // namespace

Status checkSameModel(const ModelSpec& served, const ModelSpec& peers) {
  if (served.signature() == peers.signature()) return {};
  const bool measured = served.name == kBenchModel && peers.name != kBenchModel;
  return {ErrorCode::modelMismatch,
          "the model does not match: " +
              describeDifference(peers, "the trainer's model", served, "the daemon's") +
              (measured ? "; that is the model of psd-trainer bench: restart the daemon to train"
                        : "; a daemon serves one model, and another model needs a daemon of its own")};
}

ModelHost::ModelHost(std::shared_ptr<const DaemonConfig> config,
                     std::vector<std::shared_ptr<Backend>> backends, Env& env, Durability& durability,
                     DaemonMetrics& counters, std::shared_ptr<ByteBudget> snapshots)
    : config_(std::move(config)),
      backends_(std::move(backends)),
      env_(env),
      durability_(durability),
      counters_(counters),
      staging_(makeGradientPool(config_->limits.stagedBytes)),
      snapshots_(std::make_shared<SnapshotBudget>(std::move(snapshots))),
      tasks_(*this) {
  limitStagedBytes();
}

void ModelHost::limitStagedBytes() {
  staging_->setLentBytesMax(config_->limits.stagedBytes);
  for (const auto& backend : backends_) backend->limitStagedBytes(config_->limits.stagedBytes);
}

void ModelHost::taskFailed(kj::Exception&& exception) {
  spdlog::error("a policy's work failed: {}", exception.getDescription().cStr());
}

Status ModelHost::load() {
  if (!config_->model) return {};
  ModelSpec spec = config_->model->spec;
  if (config_->model->file.empty()) {
    PSD_ASSIGN_OR_RETURN(model_, build(*config_, std::move(spec)));
    return {};
  }
  auto opened = SafetensorsReader::open(env_, config_->model->file);
  if (!opened.ok()) return {opened.error().code, "model.file: " + opened.message()};
  const SafetensorsReader& file = *opened;
  const std::string name = spec.name;
  if (!file.unread().empty())
    spdlog::warn("model.file: '{}': {}", config_->model->file, file.describeUnread());
  spec = file.model();
  if (!name.empty()) spec.name = name;
  PSD_ASSIGN_OR_RETURN(model_, build(*config_, std::move(spec), [&](ParameterStore& store) -> Status {
                         PSD_RETURN_IF_ERROR(loadParameters(file, store));
                         return deriveStoreState(store);
                       }));
  initialized_ = ready_ = true;
  return {};
}

Status ModelHost::resumeFrom(const Checkpoint& checkpoint) {
  const ModelSpec& saved = checkpoint.manifest.model;
  if (saved.partition != config_->daemons.partition()) {
    return {
        ErrorCode::modelMismatch,
        fmt::format("checkpoint '{}' is of {}, and by `daemons` and `index` this daemon serves {}: restore "
                    "the previous configuration, use another folder, or divide all daemons' folders with "
                    "psd repartition",
                    checkpoint.path, saved.partition.toString(), config_->daemons.partition().toString())};
  }
  const bool given = config_->model && config_->model->file.empty();
  DaemonConfig config = *config_;
  adoptOptimizers(config.groups, optimizersOf(checkpoint.manifest));
  PSD_ASSIGN_OR_RETURN(model_,
                       build(config, given ? config_->model->spec : saved,
                             [&](ParameterStore& store) { return durability_.restore(checkpoint, store); }));
  initialized_ = ready_ = true;
  for (size_t i = 0; i < model_->store->blockCount(); i++)
    savedPushes_.push_back(model_->store->block(i).pushed());
  spdlog::info("resuming from checkpoint '{}' of {}: model '{}', shard 0 at version {}", checkpoint.path,
               checkpoint.manifest.created, saved.name, model_->store->block(0).version().value);
  return {};
}

void ModelHost::startSavingBlocking() {
  if (ready()) static_cast<void>(durability_.begin(savingSource(model_)));
}

CheckpointSource ModelHost::savingSource(const std::shared_ptr<ServedModel>& model) {
  CheckpointSource source;
  source.store = std::shared_ptr<ParameterStore>(model, model->store.get());
  source.groups = [model] {
    std::vector<CheckpointSource::Group> groups;
    for (const auto& policy : model->policies()) {
      RoundPolicy* const rounds = policy->rounds();
      groups.push_back({std::string(policy->name()), policy->properties().appliesSlices,
                        std::shared_ptr<ShardLock>(policy, rounds ? rounds->groupLock() : nullptr),
                        rounds != nullptr});
    }
    return groups;
  };
  return source;
}

kj::Promise<void> ModelHost::beginSaving() {
  return background_.run<Status>([this, source = savingSource(model_)] { return durability_.begin(source); })
      .ignoreResult();  // a failure is logged and retried
}

kj::Promise<void> ModelHost::saveValues() {
  initialized_ = true;
  return background_
      .run<Status>([this, source = savingSource(model_)] {
        if (const Status derived = deriveStoreState(*source.store); !derived.ok())
          spdlog::error("the optimizer's state is not that of the initial values: {}", derived.message());
        return durability_.begin(source);  // a failure is logged and retried
      })
      .then([this](const Status&) { ready_ = true; });
}

Status ModelHost::mayRestore() const {
  if (!ready()) return {ErrorCode::notReady, "the model has no values yet"};
  PSD_RETURN_IF_ERROR(checkRestorable(*model_->store));
  for (const auto& policy : model_->policies()) {
    for (const Waiting& waiting : policy->waiting()) {
      if (!waiting.waiters.empty())
        return {ErrorCode::invalidArgument, "another trainer has pushed a gradient, which waits for others"};
    }
  }
  return {};
}

kj::Promise<Status> ModelHost::restore(std::shared_ptr<const ModelState> state) {
  if (Status may = mayRestore(); !may.ok()) return may;
  return replace(std::move(state), /*pristine=*/true);
}

kj::Promise<Status> ModelHost::replace(std::shared_ptr<const ModelState> state, bool pristine) {
  const auto saved = std::make_shared<Status>();
  // Gradients that wait for others are answered, since their round never closes afterwards.
  return settle(std::vector<bool>(model_->policies().size(), false))
      .then([this] { return quiesce(); })
      .then([this, state = std::move(state), pristine, saved] {
        return background_.tryRun<Status>([this, state, pristine, saved, source = savingSource(model_)] {
          return durability_.replace(
              source, [&] { return replaceState(*source.store, *state, pristine); }, *saved);
        });
      })
      .then([this, saved](Status replaced) -> Status {
        if (!replaced.ok()) return replaced;
        model_->recordStartVersions();
        adopt(config_,
              std::vector<bool>(model_->policies().size(), false));  // they start from the current versions
        if (saved->ok()) return {};
        return {saved->error().code,
                "the model has the restored state, which was not saved: " + saved->message()};
      });
}

bool ModelHost::dropUninitialized() {
  if (initialized_ || config_->model) return false;
  model_ = nullptr;
  return true;
}

std::vector<std::vector<AppliedPush>> ModelHost::savedPushesOf(const TrainerProcess& process) const {
  std::vector<std::vector<AppliedPush>> found(savedPushes_.size());
  if (process.incarnation == 0) return found;
  for (size_t shard = 0; shard < savedPushes_.size(); shard++) {
    auto pushes = pushesOf(savedPushes_[shard], process.rank, process.incarnation);
    const bool any = std::ranges::any_of(pushes, [](const AppliedPush& push) { return push.step > Step{0}; });
    if (any) found[shard] = std::move(pushes);
  }
  return found;
}

std::vector<AppliedPush> ModelHost::allSavedPushes() const {
  std::vector<AppliedPush> all;
  for (const PushedRanges& pushed : savedPushes_) {
    for (const PushedRange& range : pushed.ranges()) {
      all.insert(all.end(), range.pushes.begin(), range.pushes.end());
    }
  }
  return all;
}

std::set<Rank> ModelHost::savedRanks() const {
  std::set<Rank> ranks;
  for (const AppliedPush& push : allSavedPushes()) {
    if (!isBridge(push.rank)) ranks.insert(push.rank);
  }
  return ranks;
}

bool ModelHost::superseded(const TrainerProcess& process) const {
  return std::ranges::any_of(allSavedPushes(), [&](const AppliedPush& push) {
    return push.rank == process.rank &&
           std::ranges::find(push.earlier, process.incarnation) != push.earlier.end();
  });
}

Result<std::shared_ptr<ServedModel>> ModelHost::build(
    const DaemonConfig& config, ModelSpec model, const std::function<Status(ParameterStore&)>& fill) const {
  PSD_ASSIGN_OR_RETURN(auto store, makeStore(config, std::move(model), backends_, fill));
  Policies policies = makePolicies(config, *store);
  return std::make_shared<ServedModel>(std::move(store), std::move(policies), staging_);
}

Policies ModelHost::makePolicies(const DaemonConfig& config, ParameterStore& store) const {
  Policies policies;
  for (uint32_t i = 0; i < config.groups.size(); i++) policies.push_back(makePolicy(config, store, i, false));
  return policies;
}

Result<std::shared_ptr<ServedModel>> ModelHost::copyFrom(Env& env, const Checkpoint& checkpoint,
                                                         const DaemonConfig& config) const {
  const Manifest& manifest = checkpoint.manifest;
  DaemonConfig as = config;
  adoptOptimizers(as.groups, optimizersOf(manifest));
  as.shards = static_cast<uint32_t>(manifest.shards.size());
  std::map<uint32_t, uint32_t> rowShards;
  for (const ManifestRowShard& shard : manifest.rowShards)
    as.tables.rowShards = ++rowShards[shard.range.group];
  const auto fill = [&](ParameterStore& store) -> Status {
    if (!sameShape(manifest, store)) {
      return {ErrorCode::modelMismatch,
              "the primary's model has other shards or optimizers than this daemon's configuration gives "
              "it"};
    }
    return restoreStore(env, checkpoint, store).status();
  };
  PSD_ASSIGN_OR_RETURN(auto store, makeStore(as, manifest.model, backends_, fill));
  Policies policies = makePolicies(config, *store);
  return std::make_shared<ServedModel>(std::move(store), std::move(policies), staging_);
}

void ModelHost::follow(std::shared_ptr<ServedModel> copy, std::shared_ptr<const DaemonConfig> config) {
  config_ = std::move(config);
  limitStagedBytes();
  initialized_ = ready_ = false;
  model_ = std::move(copy);
}

void ModelHost::takeOver() {
  ParameterStore& store = *model_->store;
  model_->recordStartVersions();
  model_->setPolicies(makePolicies(*config_, store));  // they start from the current versions
  savedPushes_.clear();
  for (size_t i = 0; i < store.blockCount(); i++) savedPushes_.push_back(store.block(i).pushed());
  initialized_ = ready_ = true;
  durability_.beginAsync(savingSource(model_));
}

std::shared_ptr<UpdatePolicy> ModelHost::makePolicy(const DaemonConfig& config, ParameterStore& store,
                                                    uint32_t group, bool started) const {
  PolicyScope scope{.store = store,
                    .group = group,
                    .staging = staging_,
                    .snapshots = snapshots_,
                    .started = started,
                    .recorded = config.recorded(),
                    .roundMetrics = RoundMetrics{counters_.roundSeconds, counters_.graceSeconds,
                                                 counters_.leftOut, counters_.lateCounted},
                    .moments = moments_};
  // Of all groups: those that count the trainers of different versions would start their rounds with
  // different trainers, each of which then waits in one group for what another sends after its round in the
  // other.
  for (size_t i = 0; i < store.blockCount(); i++) {
    if (!store.block(i).updated()) continue;
    scope.resumeWithin = std::chrono::milliseconds(config.membership.graceMs);
    scope.previousTrainers = std::max(scope.previousTrainers, trainersOfNewestVersion(store.block(i)));
  }
  return config.groups[group].policy.plan.make(scope);
}

bool ModelHost::untrained() const {
  if (!ready() || counters_.trainersJoined.value() > 0) return false;
  const ParameterStore& store = *model_->store;
  for (size_t i = 0; i < store.blockCount(); i++) {
    if (store.block(i).version().value > 0) return false;
  }
  return true;
}

Result<std::shared_ptr<ServedModel>> ModelHost::reordered(const DaemonConfig& config, ServedModel& served,
                                                          ModelSpec trainers) const {
  return build(config, std::move(trainers), [&](ParameterStore& store) -> Status {
    PSD_RETURN_IF_ERROR(copyParameters(*served.store, store));
    return deriveStoreState(store);
  });
}

bool ModelHost::serves(const ModelSpec& model) const {
  return model_ && model_->store->model().signature() == model.signature();
}

std::vector<Optimizer> ModelHost::servedOptimizers() const {
  std::vector<Optimizer> optimizers;
  for (uint32_t i = 0; i < config_->groups.size(); i++) optimizers.push_back(model_->store->optimizer(i));
  return optimizers;
}

std::vector<GroupConfig> ModelHost::servedGroups() const {
  std::vector<GroupConfig> groups = config_->groups;
  if (model_) adoptOptimizers(groups, servedOptimizers());
  return groups;
}

Result<std::vector<GroupConfig>> ModelHost::groupsFor(const std::string& optimizer) const {
  const bool isFree = !model_ || untrained() || (!initialized_ && trainers_.empty());
  const bool adopts = isFree && !optimizer.empty();
  std::vector<GroupConfig> groups = adopts ? config_->groups : servedGroups();
  if (adopts && takesTrainersOptimizer(groups)) {
    PSD_ASSIGN_OR_RETURN(const Optimizer trainers, parseOptimizer(optimizer));
    adoptOptimizers(groups, {trainers});
  } else {
    PSD_RETURN_IF_ERROR(checkTrainersOptimizer(optimizer, groups));
  }
  return groups;
}

kj::Promise<Status> ModelHost::provideModel(ModelSpec model, std::string optimizer) {
  if (model.partition != config_->daemons.partition()) {
    return Status(ErrorCode::modelMismatch,
                  fmt::format("this daemon serves {}, but the trainer requests {}",
                              config_->daemons.partition().toString(), model.partition.toString()));
  }
  KJ_IF_MAYBE (building, building_) {
    // A model is being built for another trainer; retry when it is done.
    return building->addBranch().then(
        [this, model = std::move(model), optimizer = std::move(optimizer)](Status) mutable {
          return provideModel(std::move(model), std::move(optimizer));
        });
  }
  const bool unclaimed = model_ && trainers_.empty() && !initialized_ && !config_->model;
  // Its trainer has departed or was rejected.
  if (unclaimed &&
      (!serves(model) || !optimizer.empty() || !sameOptimizers(config_->groups, servedOptimizers()))) {
    model_ = nullptr;
  }
  auto groups = groupsFor(optimizer);
  if (!groups.ok()) return groups.status();
  auto config = std::make_shared<DaemonConfig>(*config_);
  config->groups = *std::move(groups);
  if (model_) {
    const ModelSpec& mine = model_->store->model();
    // The tensors of a file have the file's order, and so do those of a checkpoint from before any training.
    // Unless the configuration lists the tensors, the first trainer's order is served.
    const bool listed = config_->model && config_->model->file.empty();
    const bool reorder =
        !listed && untrained() && mine.signature() != model.signature() && sameTensors(mine, model);
    const bool keepsOptimizers = sameOptimizers(config->groups, servedOptimizers());
    if (!reorder && keepsOptimizers) return checkSameModel(mine, model);
    if (!reorder) model = mine;
  } else if (Status room = checkLimits(*config, model, backends_.size()); !room.ok()) {
    return room;
  }
  auto made = background_
                  .run<Result<std::shared_ptr<ServedModel>>>(
                      [this, config, served = model_, model = std::move(model)] {
                        return served ? reordered(*config, *served, model) : build(*config, model);
                      })
                  .then([this, config = config_, before = model_](
                            Result<std::shared_ptr<ServedModel>> served) -> kj::Promise<Status> {
                    // The state may have changed meanwhile; the caller retries.
                    if (config != config_ || before != model_ || !trainers_.empty()) return Status();
                    return served.ok() ? serve(std::move(*served)) : Status(served.error());
                  })
                  .fork();
  // On a branch: this may release the last reference to the fork, which must not be destroyed from its own
  // continuation.
  tasks_.add(made.addBranch().then([this](const Status&) { building_ = nullptr; },
                                   [this](kj::Exception&&) { building_ = nullptr; }));
  auto mine = made.addBranch();
  building_ = kj::mv(made);
  return mine;
}

kj::Promise<Status> ModelHost::serve(std::shared_ptr<ServedModel> model) {
  if (model_) {
    model_->retire();
    model_->store->setSharedReadable(false);
  }
  model_ = std::move(model);
  const ParameterStore& store = *model_->store;
  spdlog::info("serving model '{}': {} parameters in {} tensors, {} shards on {}", store.model().name,
               store.model().parameterCount(), store.model().tensors.size(), store.shardCount(),
               store.describeDevices());
  if (!store.model().tables.empty() && !config_->durability.enabled()) {
    spdlog::warn(
        "the rows of the {} embedding table(s) of model '{}' are not saved and are lost when this daemon "
        "ends; configure `durability` to keep them",
        store.model().tables.size(), store.model().name);
  }
  if (!ready_) return Status();
  return beginSaving().then([] { return Status(); });
}

void ModelHost::join(const TrainerRef& trainer) {
  if (!trainers_.emplace(trainer.session, trainer).second) return;
  for (const auto& policy : model_->policies()) {
    tasks_.add(policy->join(trainer).attach(std::shared_ptr(policy)));
  }
}

void ModelHost::leave(SessionId session) {
  if (trainers_.erase(session) == 0) return;  // already removed, since it waits for samples
  for (const auto& policy : model_->policies()) {
    tasks_.add(policy->leave(session).attach(std::shared_ptr(policy)));
  }
}

bool ModelHost::tick() {
  if (!model_) return false;
  bool any = false;
  for (const auto& policy : model_->policies()) {
    if (!policy->properties().ticks) continue;
    any = true;
    tasks_.add(policy->tick(std::chrono::steady_clock::now()).attach(std::shared_ptr(policy)));
  }
  return any;
}

void ModelHost::endWaits(const Error& reason) {
  if (!model_) return;
  for (const auto& policy : model_->policies()) policy->endWaits(reason);
}

kj::Promise<void> ModelHost::settle(const std::vector<bool>& keepPolicies) {
  if (!model_) return kj::READY_NOW;
  const Policies policies = model_->policies();
  auto settled = kj::heapArrayBuilder<kj::Promise<void>>(policies.size());
  for (size_t i = 0; i < policies.size(); i++) {
    auto done = keepPolicies[i] ? policies[i]->quiesce() : policies[i]->drain();
    settled.add(done.attach(std::shared_ptr(policies[i])));
  }
  return kj::joinPromises(settled.finish());
}

kj::Promise<void> ModelHost::quiesce() {
  return settle(std::vector<bool>(model_ ? model_->policies().size() : 0, true));
}

void ModelHost::adopt(std::shared_ptr<const DaemonConfig> config, const std::vector<bool>& keepPolicies) {
  config_ = std::move(config);
  limitStagedBytes();
  if (!model_) return;
  model_->store->setTableBytesMax(config_->limits.tableBytes);
  ParameterStore& store = *model_->store;
  const bool takesOptimizer = takesTrainersOptimizer(config_->groups);
  // The globs match: they cannot change while the daemon runs.
  if (const auto tables = assignTables(store.model(), config_->tables); tables.ok()) {
    for (uint32_t i = 0; i < tables->size(); i++) store.setRowRules(i, (*tables)[i].rules);
  }
  for (uint32_t i = 0; i < config_->groups.size(); i++) {
    const Optimizer& next = config_->groups[i].optimizer;
    // A standby has its primary's optimizers, and applies records while its own limits change.
    if (!takesOptimizer && writeOptimizer(next) != writeOptimizer(store.optimizer(i)))
      store.setOptimizer(i, next);
  }
  const Policies before = model_->policies();
  Policies after = before;
  bool live = true;
  for (uint32_t i = 0; i < after.size(); i++) {
    if (!keepPolicies[i]) {
      const RoundPolicy* const rounds = before[i]->rounds();
      const bool started = counters_.trainersJoined.value() > 0 && (!rounds || rounds->started());
      after[i] = makePolicy(*config_, store, i, started);
      for (const auto& [session, trainer] : trainers_) {
        tasks_.add(after[i]->join(trainer).attach(std::shared_ptr(after[i])));
      }
    }
    live = live && after[i]->properties().readsLive;
  }
  store.setSharedReadable(live);
  model_->setPolicies(after);
  for (size_t i = 0; i < before.size(); i++) {
    if (!keepPolicies[i]) before[i]->retire();
  }
}

}  // namespace psd
