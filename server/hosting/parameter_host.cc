#include "server/hosting/parameter_host.h"

#include <algorithm>
#include <new>

#include <spdlog/fmt/fmt.h>

#include "server/checkpoint/filtered_env.h"
#include "server/checkpoint/replay.h"
#include "server/checkpoint/samples_replay.h"
#include "server/config/round_checks.h"
#include "server/config/store_rules.h"
#include "server/replica/memory_files.h"

namespace psd {
namespace {

constexpr const char* kVersionsName = "versions";  // the folder, also in an image for a standby

}  // namespace

ParameterHost::ParameterHost(std::shared_ptr<const DaemonConfig> config,
                             std::vector<std::shared_ptr<Backend>> backends, Env& env, DaemonMetrics& metrics,
                             const MemoryBudgets& budgets, StepOutcomes& outcomes,
                             std::shared_ptr<Replicator> log)
    : config_(std::move(config)),
      backends_(std::move(backends)),
      env_(env),
      metrics_(metrics),
      budgets_(budgets),
      outcomes_(outcomes),
      log_(std::move(log)),
      askedCheckpoints_([this] {
        return background_.run<CheckpointRequests::Outcome>([this] { return durability_->checkpointNow(); });
      }) {}

Status ParameterHost::open() {
  PSD_ASSIGN_OR_RETURN(durability_, Durability::open(env_, config_->durability, budgets_.logPending,
                                                     &metrics_.logSyncSeconds));
  if (log_) durability_->replicateTo(log_);
  models_ = std::make_unique<ModelHost>(config_, backends_, env_, *durability_, metrics_, budgets_.snapshots);
  if (config_->publish && config_->daemons.several()) {
    rounds_ = std::make_shared<RoundQueue>();
    models_->setMoments(rounds_);
  }
  return placeVersions();
}

Status ParameterHost::openVersions(bool hasAll) {
  if (!config_->publish) return {};
  const auto from = config_->publish->from;
  VersionStore::Place place{.env = versionFiles_,
                            .folder = versionsFolder_,
                            .hasAll = hasAll,
                            .copies = from == PublishConfig::From::upstream};
  if (lockedVersions_) {
    place.holds = [this] { return lockedVersions_->keep(); };
  } else if (versionsAreDurable()) {
    place.holds = [this] { return durability_->keepFolder(); };
  }
  if (log_) place.mirror = std::make_shared<VersionMirror>(log_);
  PSD_ASSIGN_OR_RETURN(versions_, VersionStore::open(std::move(place), versionTerms()));
  if (from == PublishConfig::From::publishers) {
    intake_ = std::make_unique<PartsIntake>(versions_, intakeTerms(), versionsPath());
  }
  if (from == PublishConfig::From::training) {
    publisher_ = std::make_unique<Publisher>(versions_, *config_->publish, versionsPath(),
                                             config_->daemons.partition(), rounds_);
  }
  return {};
}

bool ParameterHost::versionsAreDurable() const {
  return config_->servesOnlyVersions() ? !config_->publish->path.empty() : config_->durability.enabled();
}

Status ParameterHost::placeVersions() {
  const bool durable = versionsAreDurable();
  versionFiles_ = durable ? std::shared_ptr<Env>(std::shared_ptr<void>(), &env_)
                          : std::shared_ptr<Env>(std::make_shared<MemoryFiles>());
  versionsFolder_ =
      (config_->servesOnlyVersions() ? std::string() : config_->durability.path) + "/" + kVersionsName;
  if (!config_->servesOnlyVersions() || !durable) return {};
  versionsFolder_ = config_->publish->path;
  PSD_ASSIGN_OR_RETURN(lockedVersions_, LockedFolder::take(env_, versionsFolder_, "publish.path"));
  return {};
}

PartsIntake::Terms ParameterHost::intakeTerms() const {
  return {.timeout = std::chrono::seconds(config_->publish->partsTimeoutSeconds),
          .ranksMax = config_->limits.connections};
}

Result<std::unique_ptr<StandbyFiles>> ParameterHost::makeVersionsCopy(Env& image,
                                                                      const DaemonConfig& config) const {
  if (!config.publish) return std::unique_ptr<StandbyFiles>();
  return StandbyFiles::make(versionFiles_, versionsFolder_, image, kVersionsName);
}

VersionLedger::Terms ParameterHost::versionTerms() const {
  return {.keep = config_->publish->keep,
          .bytes = config_->limits.versionBytes,
          .leases = config_->limits.versionLeases};
}

void ParameterHost::beginPublishing() {
  if (publisher_ && models_->ready()) publisher_->begin(ModelHost::savingSource(models_->model()));
}

void ParameterHost::beginSaving() {
  models_->startSavingBlocking();
  beginPublishing();
}

kj::Promise<Status> ParameterHost::provideModel(ModelSpec model, std::string optimizer) {
  return models_->provideModel(std::move(model), std::move(optimizer)).then([this](Status provided) {
    beginPublishing();  // an untrained model may have been replaced
    return provided;
  });
}

void ParameterHost::drop() {
  if (publisher_) publisher_->forget();
  models_->drop();
}

kj::Promise<void> ParameterHost::saveValues() {
  return models_->saveValues().then([this] { beginPublishing(); });
}

kj::Promise<void> ParameterHost::holdVersions() {
  return publisher_ ? publisher_->hold() : kj::Promise<void>(kj::READY_NOW);
}

void ParameterHost::freezeVersions(Error why) {
  if (publisher_) versions_->freeze(std::move(why));
}

void ParameterHost::releaseVersions() {
  if (!publisher_) return;
  versions_->thaw();
  publisher_->release();
}

kj::Promise<Result<VersionStore::Given>> ParameterHost::giveVersionTo(std::shared_ptr<Env> to,
                                                                      uint64_t after) {
  using Given = Result<VersionStore::Given>;
  if (!publisher_) return Given(ErrorCode::invalidArgument, "this daemon does not publish its model");
  return background_.tryRun<Given>(
      [versions = versions_, to = std::move(to), after] { return versions->giveTo(*to, after); });
}

Status ParameterHost::saveLast(bool continuesElsewhere) {
  if (continuesElsewhere && publisher_) publisher_->stop();
  releaseVersions();  // of a move that is not committed, and will not be any more
  if (intake_) intake_->finish();
  const Status published = publisher_ ? publisher_->finish() : Status();
  const Status saved = durability_->finish();
  if (!saved.ok() || published.ok()) return saved;
  return {published.error().code, "the last version: " + published.message()};
}

kj::Promise<Status> ParameterHost::restore(std::shared_ptr<const ModelState> state, Departed departed) {
  if (Status may = models_->mayRestore(); !may.ok()) return may;
  return whileQuiesced_([this, state = std::move(state)] { return models_->restore(state); })
      .then([this, departed = std::move(departed)](Status restored) -> kj::Promise<Status> {
        if (!restored.ok() || !log_) return restored;
        // A standby holds this record only once it has the copy that it gets now.
        return log_->whenDurable(log_->append(departed)).then([] { return Status(); });
      });
}

Result<VersionInfo> ParameterHost::findToRollBack(uint64_t number) const {
  if (!publisher_) {
    return Error{ErrorCode::invalidArgument,
                 "this daemon does not train the model of its versions: roll back where it is trained, or "
                 "publish the tensors of the earlier version again"};
  }
  if (rounds_) {
    return Error{
        ErrorCode::invalidArgument,
        "several daemons serve the model, and cannot return to a version at one moment: see 'Back to a "
        "version' of the guide for several daemons"};
  }
  PSD_RETURN_IF_ERROR(checkKeeps());
  if (!models_->ready()) return Error{ErrorCode::notReady, "the model has no values yet"};
  const ParameterStore& store = *models_->model()->store;
  if (!store.model().tables.empty()) {
    return Error{ErrorCode::invalidArgument,
                 "the model has embedding tables, whose rows are in no version: resume from a checkpoint "
                 "(durability.resume)"};
  }
  PSD_ASSIGN_OR_RETURN(VersionInfo version, publisher_->versions().find(number));
  if (version.moment == VersionMoment::live) {
    return Error{ErrorCode::invalidArgument,
                 fmt::format("version {} is live: checkpoint and log cannot rebuild it", version.number)};
  }
  if (version.shardVersions.size() != store.shardCount()) {
    return Error{ErrorCode::invalidArgument,
                 fmt::format("version {} has other shards than the model now", version.number)};
  }
  return version;
}

Result<std::shared_ptr<const ModelState>> ParameterHost::rebuildAt(const VersionInfo& version,
                                                                   const ParameterStore& current) const {
  const auto cannot = [&version](const Error& error) {
    return Error{error.code, fmt::format("version {} cannot be rebuilt: {}", version.number, error.message)};
  };
  std::vector<Version> until;
  for (const uint64_t each : version.shardVersions) until.push_back({each});
  try {
    auto rebuilt = rebuild(env_, config_->durability.path, ReplayEnd(std::move(until)));
    if (!rebuilt.ok()) return cannot(rebuilt.error());
    for (size_t i = 0; i < current.shardCount(); i++) {
      const Shard& shard = current.shard(i);
      const bool same =
          i < (*rebuilt)->shardCount() && (*rebuilt)->shard(i).range() == shard.range() &&
          (*rebuilt)->optimizerOf((*rebuilt)->shard(i)).name() == current.optimizerOf(shard).name();
      if (!same) return cannot({ErrorCode::invalidArgument, "it has other shards or another optimizer"});
    }
    auto state = stateOf(**rebuilt);
    if (!state.ok()) return cannot(state.error());
    *rebuilt = nullptr;
    std::vector<float> weights(current.layout().totalElements());
    for (size_t i = 0; i < current.shardCount(); i++) {
      std::ranges::copy(state->shards[i].planes.front(),
                        weights.begin() + static_cast<ptrdiff_t>(current.shard(i).range().begin));
    }
    // A crash may have lost updates of the version, and others may have their numbers now.
    const Status same = publisher_->versions().checkWeights(version.number, current.layout(), weights);
    if (!same.ok()) return cannot(same.error());
    return std::shared_ptr<const ModelState>(std::make_shared<ModelState>(*std::move(state)));
  } catch (const std::bad_alloc&) {
    return cannot(
        {ErrorCode::overloaded, "out of memory: it takes twice the model and the optimizer's state"});
  }
}

kj::Promise<Result<VersionInfo>> ParameterHost::rollBack(uint64_t number, std::function<Departed()> departed,
                                                         std::function<void()> replaced) {
  using State = std::shared_ptr<const ModelState>;
  using Made = Result<VersionInfo>;
  auto version = findToRollBack(number);
  if (!version.ok()) return Made(version.error());
  if (std::exchange(rollsBack_, true)) return Made(ErrorCode::notReady, "another rollback is in progress");
  const std::shared_ptr<ServedModel> model = models_->model();
  // The version that the rollback makes; its copy is taken before gradients are accepted again.
  const auto made = std::make_shared<kj::Maybe<kj::Promise<Made>>>();
  return background_
      .tryRun<Result<State>>([this, version = *version, model] { return rebuildAt(version, *model->store); })
      .then([this, model, made, replaced = std::move(replaced)](Result<State> state) -> kj::Promise<Status> {
        if (!state.ok()) return state.status();
        return whileQuiesced_([this, model, made, replaced,
                               state = *std::move(state)]() -> kj::Promise<Status> {
          if (models_->model() != model) return Status(ErrorCode::notReady, "the model has been replaced");
          return models_->replace(state).then([this, made, replaced](Status outcome) -> kj::Promise<Status> {
            if (!outcome.ok()) return outcome;
            replaced();
            Publisher::Making making = publisher_->publishAfter();
            *made = kj::mv(making.published);
            return making.copied.then([] { return Status(); });
          });
        });
      })
      .then([this, departed = std::move(departed)](Status outcome) -> kj::Promise<Status> {
        if (!outcome.ok() || !log_) return outcome;
        return log_->whenDurable(log_->append(departed())).then([] { return Status(); });
      })
      .then([made, number = version->number](Status outcome) -> kj::Promise<Made> {
        if (!outcome.ok()) return Made(outcome.error());
        KJ_IF_MAYBE (published, *made) {
          return published->then([number](Made version) -> Made {
            if (version.ok()) return version;
            return Error{version.error().code,
                         fmt::format("the model is that of version {} again, and could not be published: {}",
                                     number, version.message())};
          });
        }
        return Made(ErrorCode::internal, "nothing was published");
      })
      .attach(kj::defer([this] { rollsBack_ = false; }));
}

Result<PriorRun> ParameterHost::prepare() {
  PSD_ASSIGN_OR_RETURN(const std::optional<Checkpoint> checkpoint, durability_->find());
  PSD_RETURN_IF_ERROR(checkpoint ? models_->resumeFrom(*checkpoint) : models_->load());
  PriorRun prior{
      .hasValues = models_->ready(), .continuesRun = checkpoint.has_value(), .ranks = models_->savedRanks()};
  if (config_->exitWhenDone) {
    PSD_ASSIGN_OR_RETURN(prior.departed, durability_->departed());
  }
  return prior;
}

kj::Promise<Result<std::string>> ParameterHost::copyTo(std::shared_ptr<Env> to, FileBeside beside) {
  return background_.run<Result<std::string>>(
      [this, to = std::move(to), beside = std::move(beside)]() -> Result<std::string> {
        PSD_ASSIGN_OR_RETURN(const auto file, to->create(beside.name));
        PSD_RETURN_IF_ERROR(file->append(std::as_bytes(std::span(beside.text))));
        PSD_RETURN_IF_ERROR(file->close());
        if (publisher_) PSD_RETURN_IF_ERROR(publisher_->versions().copyTo(*to, kVersionsName));
        return durability_->copyTo(*to, "copy");
      });
}

kj::Promise<Result<std::string>> ParameterHost::giveTo(std::shared_ptr<Env> to,
                                                       std::function<bool(const std::string&)> wanted) {
  return background_.run<Result<std::string>>([this, to = std::move(to), wanted = std::move(wanted),
                                               source = ModelHost::savingSource(models_->model())] {
    FilteredEnv some(*to, wanted);
    return durability_->copyTo(some, "copy", source);
  });
}

kj::Promise<Result<ParameterHost::Arrived>> ParameterHost::makePartition(std::shared_ptr<Env> files,
                                                                         std::vector<std::string> paths) {
  return background_.run<Result<Arrived>>(
      [this, files = std::move(files), paths = std::move(paths), config = config_]() -> Result<Arrived> {
        std::vector<Checkpoint> parts;
        for (const std::string& path : paths) {
          PSD_ASSIGN_OR_RETURN(Manifest manifest, readManifest(*files, path));
          parts.push_back({path, std::move(manifest)});
        }
        Arrived arrived;
        PSD_ASSIGN_OR_RETURN(arrived.model, models_->partitionFrom(*files, parts, *config));
        if (config->daemons.index == 0) arrived.samples = SamplesReplay(parts.front().manifest).finish();
        return arrived;
      });
}

kj::Promise<Status> ParameterHost::installModel(Arrived arrived, Departed departed) {
  *durability_->samples()->lockExclusive() = std::move(arrived.samples);
  return models_->installModel(std::move(arrived.model))
      .then([this, departed = std::move(departed)](Status saved) -> kj::Promise<Status> {
        if (saved.ok()) beginPublishing();
        const bool keeps = config_->exitWhenDone && config_->durability.enabled();
        if (!saved.ok() || !keeps) return saved;
        return saveDepartedRanks(departed);
      });
}

void ParameterHost::showCopy(std::shared_ptr<ServedModel> copy, std::shared_ptr<const DaemonConfig> config) {
  config_ = std::move(config);
  models_->follow(std::move(copy), config_);
}

PriorRun ParameterHost::serveCopy(SamplePlan samples, std::optional<Departed> departed) {
  *durability_->samples()->lockExclusive() = std::move(samples);
  models_->takeOver();
  return {.hasValues = true,
          .continuesRun = true,
          .ranks = models_->savedRanks(),
          .departed = std::move(departed)};
}

void ParameterHost::adoptServedOptimizers(std::vector<GroupConfig>& groups) const {
  if (models_ && models_->model()) adoptOptimizers(groups, models_->servedOptimizers());
}

Status ParameterHost::checkOptimizer(const DaemonConfig& next) const {
  if (takesTrainersOptimizer(next.groups)) return {};
  for (const auto& [id, process] : processes_) {
    if (!process.sendsOptimizer) continue;
    return {
        ErrorCode::invalidArgument,
        fmt::format("optimizer: the pushes of trainers set it, such as those of rank {}: change it in their "
                    "program",
                    process.process.rank.value)};
  }
  return {};
}

Status ParameterHost::checkCodec(const std::string& spec, const std::string& optimizer) const {
  PSD_ASSIGN_OR_RETURN(const std::vector<GroupConfig> groups, models_->groupsFor(optimizer));
  PSD_ASSIGN_OR_RETURN(const auto codec, makeCodec(spec));
  const Status fits = checkPushCodec(*codec, groups);
  return fits.ok() ? fits : Status(fits.error().code, "pushes: " + fits.message());
}

Status ParameterHost::checkConfig(const DaemonConfig& config, uint32_t trainers,
                                  std::span<const std::pair<Rank, std::string>> pushCodecs) const {
  std::vector<GroupConfig> groups = config.groups;
  adoptServedOptimizers(groups);
  for (const auto& [rank, spec] : pushCodecs) {
    PSD_ASSIGN_OR_RETURN(const auto codec, makeCodec(spec));
    if (Status fits = checkPushCodec(*codec, groups); !fits.ok()) {
      return {fits.error().code, fmt::format("rank {} pushes: {}", rank.value, fits.message())};
    }
  }
  if (const auto model = models_ ? models_->model() : nullptr) {
    PSD_RETURN_IF_ERROR(assignGroups(model->store->model(), groups).status());
  }
  return checkRounds(config, backends_, std::max(trainers, config.worldSize ? config.worldSize->max : 0));
}

void ParameterHost::adopt(std::shared_ptr<const DaemonConfig> config, const std::vector<bool>& keepPolicies) {
  config_ = std::move(config);
  durability_->follow(config_->durability);
  models_->adopt(config_, keepPolicies);
  if (!versions_ || !config_->publish) return;
  versions_->follow(versionTerms());
  if (publisher_) publisher_->follow(*config_->publish);
  if (intake_) intake_->follow(intakeTerms());
}

ParameterHost::Process* ParameterHost::find(ProcessId id) {
  const auto entry = processes_.find(id);
  return entry == processes_.end() ? nullptr : &entry->second;
}

ParameterHost::Place ParameterHost::placeOf(ProcessId id, const std::shared_ptr<EventLoop>& loop) {
  Process* process = find(id);
  if (!process) return {};
  if (!process->pushes) {
    process->pushes = PushServer::make(id, loop, process->model, process->counters,
                                       models_->savedPushesOf(process->process), outcomes_);
    process->pushes->beginSession(process->trainer);
    for (const Step step : process->dropped) process->pushes->drop(step);
    process->dropped.clear();
  }
  return {process->model, process->pushes};
}

Result<std::shared_ptr<ServedModel>> ParameterHost::observe(const ModelSpec& model) const {
  if (config_->servesOnlyVersions()) return storeHasNoModel();
  if (!models_->ready()) {
    return Error{ErrorCode::notReady,
                 "the daemon has no model yet; a trainer provides it, or `model.file` in its config"};
  }
  if (!model.empty()) {
    PSD_RETURN_IF_ERROR(checkSameModel(models_->model()->store->model(), model));
  }
  return models_->model();
}

Status ParameterHost::mayTrain(const TrainerProcess& process, uint32_t worldSize) const {
  PSD_RETURN_IF_ERROR(checkRounds(*config_, backends_, worldSize));
  PSD_RETURN_IF_ERROR(checkSessions(process));
  if (!models_->superseded(process)) return {};
  return {ErrorCode::rankTaken, fmt::format("rank {} was taken over by another process", process.rank.value)};
}

Status ParameterHost::checkSessions(const TrainerProcess& process) const {
  if (models_->model() == nullptr) return {};
  const auto itself = [&](const auto& each) {
    return each.second.process.rank == process.rank && each.second.process.incarnation == process.incarnation;
  };
  if (process.incarnation != 0 && std::ranges::any_of(processes_, itself)) return {};
  const ParameterStore& store = *models_->model()->store;
  const uint64_t trainers = processes_.size() + 1, shards = store.blockCount();
  const ModelSpec& model = store.model();
  const uint64_t carried = takesTrainersOptimizer(config_->groups)
                               ? model.tensors.size() + store.rowShardCount() * model.tables.size()
                               : 0;
  const uint64_t bytes = trainers * (shards * PushServer::kShardBytes + carried * PushServer::kTensorBytes),
                 most = config_->limits.sessionsBytes;
  if (bytes <= most) return {};
  return {ErrorCode::overloaded,
          fmt::format("the pushes of {} trainers to {} shards and row shards may take {} bytes, and "
                      "limits.sessions_bytes is {}: raise it, or lower shards and row_shards",
                      trainers, shards, bytes, most)};
}

void ParameterHost::processBegan(ProcessId id, const TrainerProcess& process,
                                 std::shared_ptr<SessionCounters> counters) {
  processes_[id] = {.process = process, .counters = std::move(counters), .model = models_->model()};
}

void ParameterHost::sessionBegan(ProcessId id, const TrainerRef& trainer) {
  Process& process = processes_.at(id);
  process.trainer = trainer;
  if (process.pushes) process.pushes->beginSession(trainer);
}

void ParameterHost::sessionEnded(ProcessId id) {
  if (Process* process = find(id)) process->sendsOptimizer = false;
  if (Process* process = find(id); process && process->pushes) process->pushes->endSession();
}

kj::Promise<void> ParameterHost::whenPushesDrained(ProcessId id) {
  const Process* process = find(id);
  if (!process || !process->pushes) return kj::READY_NOW;
  return process->pushes->whenPushesDrained().attach(std::shared_ptr(process->pushes));
}

void ParameterHost::drop(ProcessId id, Step step) {
  Process* process = find(id);
  if (!process) return;
  if (process->pushes) return process->pushes->drop(step);
  process->dropped.push_back(step);
}

kj::Promise<void> ParameterHost::whenAssigned() {
  if (!config_->daemons.several()) return kj::READY_NOW;
  return durability_->whenAssignmentDurable(newestDeal_);
}

kj::Promise<Status> ParameterHost::saveDepartedRanks(Departed departed) {
  const uint64_t number = log_ ? log_->append(departed) : 0;
  return background_
      .run<Status>(
          [this, departed = std::move(departed)] { return durability_->saveDepartedRanks(departed); })
      .then([this, number](Status kept) -> kj::Promise<Status> {
        if (!log_) return kept;
        return log_->whenDurable(number).then([kept = std::move(kept)] { return kept; });
      });
}

Status ParameterHost::checkKeeps() const {
  if (config_->servesOnlyVersions()) return storeHasNoModel();
  if (config_->durability.enabled()) return {};
  return {ErrorCode::invalidArgument,
          "durability.type is none: this daemon keeps no checkpoints; set checkpoint or log and "
          "durability.path, and restart it"};
}

kj::Promise<Result<std::string>> ParameterHost::checkpointNow() {
  using Outcome = Result<std::string>;
  if (Status keeps = checkKeeps(); !keeps.ok()) return Outcome(keeps.error());
  if (!models_->ready()) return Outcome(ErrorCode::notReady, "the model has no values yet");
  return askedCheckpoints_.ask();
}

kj::Promise<Result<NewestPart>> ParameterHost::newestPart() {
  if (Status keeps = checkKeeps(); !keeps.ok()) return Result<NewestPart>(keeps.error());
  return background_.run<Result<NewestPart>>([this] { return durability_->newestPart(); });
}

kj::Promise<Status> ParameterHost::recordWhole(WholeCheckpoint whole) {
  if (Status keeps = checkKeeps(); !keeps.ok()) return keeps;
  return background_.run<Status>(
      [this, whole = std::move(whole)] { return durability_->recordWhole(whole); });
}

bool ParameterHost::losesModel() const {
  if (!models_->ready() || config_->durability.enabled()) return false;
  return config_->save.empty() || models_->model()->store->rowShardCount() > 0;
}

void ParameterHost::fillStatus(DaemonStatus& status) const {
  models_->fillStatus(status);
  status.durability = durability_->status();
  if (publisher_) status.publish = publisher_->status();
  if (intake_) status.publish = intake_->status();
  status.counters = MetricValues<Counter>(metrics_);
  status.gauges = MetricValues<Gauge>(metrics_);
  status.histograms = MetricValues<Histogram>(metrics_);
}

}  // namespace psd
