#include "trainer/client/partitioned_client.h"

#include <algorithm>
#include <chrono>
#include <set>

#include <fmt/format.h>

#include "common/plan/fragment_plan.h"
#include "common/plan/same_rules.h"
#include "common/text/text.h"
#include "common/types/model_layout.h"
#include "trainer/client/api/failed_call.h"
#include "trainer/client/state_calls.h"

namespace psd {
namespace {

constexpr std::chrono::milliseconds kRankPause{100};
constexpr std::chrono::milliseconds kMovePollPause{2};  // between checks whether the model has moved

/// What the daemons report, without duplicates.
std::string eachOnce(const std::vector<std::string>& texts) {
  std::vector<std::string> found;
  for (const std::string& text : texts) {
    if (std::ranges::find(found, text) == found.end()) found.push_back(text);
  }
  return joined(found, ", ");
}

}  // namespace

Error PartitionedClient::named(const Daemon& daemon, const Error& error) {
  return {error.code, daemon.name + ": " + error.message};
}

// --- Joining --------------------------------------------------------------------------------------------

Status PartitionedClient::divide(const ModelSpec& model) {
  PSD_ASSIGN_OR_RETURN(auto partitions, partitionModel(model, static_cast<uint32_t>(daemons_.size())));
  const ModelLayout layout(model);
  for (size_t i = 0; i < daemons_.size(); i++) {
    daemons_[i].partition = std::move(partitions[i]);
    daemons_[i].nativeBegin = layout.byteAt(daemons_[i].partition.begin);
  }
  tables_ = model.tables;
  elements_ = layout.totalElements();
  return {};
}

Result<JoinInfo> PartitionedClient::join(const Membership& membership, const ModelSpec& model,
                                         const std::function<ConstArenaValues()>& initialValues) {
  PSD_RETURN_IF_ERROR(divide(model));
  newestValues_ = initialValues;
  Daemon& first = daemons_.front();
  std::optional<ConstArenaValues> values;  // if this trainer is the initializer
  std::optional<Status> others;            // outcome of joining them
  // If this trainer is the initializer, the other daemons get their values before the lead: once the lead has
  // values, all have.
  const auto initialize = [&] {
    if (!values) values = initialValues();
    if (!others || !others->ok()) others = joinOthers(values);
    return others->ok() ? partOf(*values, first) : ConstArenaValues();
  };
  const Result<JoinInfo> joined = first.client->join(membership, first.partition.spec, initialize);
  useNewestValues(first);
  if (others && !others->ok()) return others->error();
  if (!joined.ok()) return named(first, joined.error());
  if (!others) PSD_RETURN_IF_ERROR(joinOthers({}));
  PSD_RETURN_IF_ERROR(checkRules());
  JoinInfo all = describe();
  all.model = model;
  PSD_RETURN_IF_ERROR(checkFragments(all, model));
  return all;
}

ConstArenaValues PartitionedClient::partOf(ConstArenaValues all, const Daemon& daemon) const {
  if (all.size() != elements_) return {};  // the daemon's client reports the error
  return all.part(daemon.partition.begin, daemon.partition.count, daemon.nativeBegin);
}

void PartitionedClient::useNewestValues(Daemon& daemon) {
  daemon.client->setInitialValues([this, &daemon] { return partOf(newestValues_(), daemon); });
}

Status PartitionedClient::joinOthers(const std::optional<ConstArenaValues>& values) {
  for (size_t i = 1; i < daemons_.size(); i++) PSD_RETURN_IF_ERROR(joinOther(daemons_[i], values));
  return {};
}

Status PartitionedClient::joinOther(Daemon& daemon, const std::optional<ConstArenaValues>& values) {
  bool isInitializer = false;
  const auto initialize = [&] {
    isInitializer = true;
    return values ? partOf(*values, daemon) : ConstArenaValues();
  };
  const Result<JoinInfo> joined = joinAtRank(daemon, initialize);
  useNewestValues(daemon);
  const bool hasTensors = daemon.partition.count > 0;
  if (isInitializer && !values && hasTensors) {
    return {
        ErrorCode::modelMismatch,
        fmt::format("{} has no values, and the daemons before it have some: it restarted without its "
                    "state (`durability` keeps it). Restart all daemons, or this one with its saved state",
                    daemon.name)};
  }
  if (!joined.ok()) return named(daemon, joined.error());
  if (values && !joined->initializedModel && hasTensors) {
    return {ErrorCode::modelMismatch,
            fmt::format("{} has values, and the lead has none: the lead restarted without its state, or the "
                        "initializer died before it finished. Trainers that were joined restore the values; "
                        "otherwise restart all daemons",
                        daemon.name)};
  }
  return {};
}

Result<JoinInfo> PartitionedClient::joinAtRank(Daemon& daemon,
                                               const std::function<ConstArenaValues()>& initialize) {
  const Membership own{lead().info().rank, lead().info().worldSize, false};
  const auto deadline = std::chrono::steady_clock::now() + retryTimeout_;
  for (;;) {
    Result<JoinInfo> joined = daemon.client->join(own, daemon.partition.spec, initialize);
    // The lead assigned the rank of a trainer that this daemon does not yet count as lost.
    const bool soonFree = !joined.ok() && joined.error().code == ErrorCode::rankTaken;
    if (!soonFree || std::chrono::steady_clock::now() >= deadline) return joined;
    if (!lock_.pause(kRankPause)) return waitEndedError();
  }
}

Result<JoinInfo> PartitionedClient::observe(const ModelSpec& model) {
  if (!model.empty()) PSD_RETURN_IF_ERROR(divide(model));
  std::vector<ModelSpec> parts;
  for (Daemon& daemon : daemons_) {
    const Result<JoinInfo> observed =
        daemon.client->observe(model.empty() ? ModelSpec() : daemon.partition.spec);
    if (!observed.ok()) return named(daemon, observed.error());
    parts.push_back(observed->model);
  }
  ModelSpec whole = model;
  if (model.empty()) {
    PSD_ASSIGN_OR_RETURN(whole, joinPartitions(parts));
    PSD_RETURN_IF_ERROR(divide(whole));
  }
  PSD_RETURN_IF_ERROR(checkRules());
  JoinInfo all = describe();
  all.model = std::move(whole);
  return all;
}

Status PartitionedClient::checkRules() const {
  const Daemon& first = daemons_.front();
  std::vector<uint32_t> empty = first.client->rules().emptyGroups;
  for (const Daemon& daemon : daemons_) {
    const ModelRules& rules = daemon.client->rules();
    std::erase_if(empty, [&](uint32_t group) {
      return std::ranges::find(rules.emptyGroups, group) == rules.emptyGroups.end();
    });
    PSD_RETURN_IF_ERROR(checkSameRules({first.name, first.client->rules().text}, {daemon.name, rules.text}));
  }
  if (empty.empty()) return {};
  const LocalSteps& local = first.client->info().local;
  if (local.fragmentPerGroup && empty.front() + 1 == local.fragments) {
    return {ErrorCode::invalidArgument,
            "groups of the daemons' configuration leave no tensor of the model to the top level, which is a "
            "fragment too; give the last group's tensors to it"};
  }
  return {
      ErrorCode::invalidArgument,
      fmt::format("groups[{}].match of the daemons' configuration matches no tensor or table of the model",
                  empty.front())};
}

Status PartitionedClient::checkFragments(const JoinInfo& info, const ModelSpec& model) const {
  // Groups are part of the rules of all daemons.
  if (info.local.fragments == 1 || info.local.fragmentPerGroup) return {};
  const std::vector<uint32_t> plan = planFragments(model, info.local.fragments);
  const ModelLayout layout(model);
  for (const ShardRange& shard : info.shards) {
    const uint64_t end = shard.begin + shard.count;
    for (size_t i = layout.tensorAt(shard.begin); i < plan.size() && layout.places()[i].begin < end; i++) {
      if (plan[i] == shard.group) continue;
      return {ErrorCode::protocolMismatch,
              fmt::format("the daemons have tensor '{}' in fragment {}, but it belongs to fragment {}; all "
                          "programs must have the same version",
                          printable(model.tensors[i].name), shard.group, plan[i])};
    }
  }
  return {};
}

std::vector<ShardRange> PartitionedClient::shardsOfAll() const {
  std::vector<ShardRange> all;
  for (const Daemon& daemon : daemons_) {
    for (ShardRange shard : daemon.client->info().shards) {
      shard.id = ShardId{static_cast<uint32_t>(all.size())};
      shard.begin += daemon.partition.begin;
      all.push_back(shard);
    }
  }
  return all;
}

Result<std::vector<size_t>> PartitionedClient::holdersOf(std::optional<uint32_t> fragment) const {
  std::vector<size_t> holders;
  for (size_t i = 0; i < daemons_.size(); i++) {
    const auto& shards = daemons_[i].client->info().shards;
    const bool has = !fragment || std::ranges::find(shards, *fragment, &ShardRange::group) != shards.end();
    if (has) holders.push_back(i);
  }
  if (!holders.empty()) return holders;
  return Error{ErrorCode::invalidArgument, fmt::format("there is no fragment {}, the model has {}", *fragment,
                                                       daemons_.front().client->info().local.fragments)};
}

JoinInfo PartitionedClient::describe() const {
  JoinInfo all = daemons_.front().client->info();
  std::vector<std::string> devices, pulls, pushes, rows;
  all.shardCount = all.rowShardCount = 0;
  all.daemons.clear();
  all.shards = shardsOfAll();
  for (const Daemon& daemon : daemons_) {
    const JoinInfo& info = daemon.client->info();
    all.shardCount += info.shardCount;
    all.rowShardCount += info.rowShardCount;
    all.daemons.insert(all.daemons.end(), info.daemons.begin(), info.daemons.end());
    all.connections = std::max(all.connections, info.connections);
    devices.push_back(info.device);
    pulls.push_back(info.pullTransport == "cuda" ? "rpc" : info.pullTransport);
    pushes.push_back(info.pushTransport);
    rows.push_back(info.rowTransport);
  }
  all.device = fmt::format("{} daemons: {}", daemons_.size(), eachOnce(devices));
  all.pullTransport = eachOnce(pulls);
  all.pushTransport = eachOnce(pushes);
  all.rowTransport = eachOnce(rows);
  return all;
}

// --- In between -----------------------------------------------------------------------------------------

CombinedVersions PartitionedClient::versions() const {
  std::vector<CombinedVersions::Blocks> blocks;
  for (const Daemon& daemon : daemons_) {
    blocks.push_back({daemon.client->info().shardCount, daemon.client->info().rowShardCount});
  }
  return CombinedVersions(std::move(blocks));
}

Status PartitionedClient::checkLength(const char* what, size_t elements) const {
  if (elements == elements_) return {};
  return {ErrorCode::invalidArgument,
          fmt::format("{} has {} elements; the model's layout has {}", what, elements, elements_)};
}

Status PartitionedClient::checkRows(const RowBatch* rows) const {
  if (rows == nullptr || rows->daemons() == daemons_.size()) return {};
  return {ErrorCode::invalidArgument,
          fmt::format("the rows are divided among {} daemons; the batch must come from this client's "
                      "makeRowBatch(), for {}",
                      rows->daemons(), daemons_.size())};
}

std::shared_ptr<RowBatch> PartitionedClient::rowsOf(const RowBatch* all, uint32_t daemon) {
  return all ? std::make_shared<RowBatch>(all->ofDaemon(daemon)) : nullptr;
}

RowBatch PartitionedClient::makeRowBatch() const {
  const uint32_t shards = daemons_.front().client->makeRowBatch().shards();
  return RowBatch(tables_, shards, nullptr, static_cast<uint32_t>(daemons_.size()));
}

Pending<PullInfo> PartitionedClient::pull(ArenaValues destination, RowBatch* rows) {
  ending_ = 0;
  const bool rowsOnly = destination.empty() && rows != nullptr;
  if (Status fits = checkLength("the destination of a pull", destination.size()); !fits.ok() && !rowsOnly) {
    return failedCall<PullInfo>(fits.error());
  }
  if (Status fits = checkRows(rows); !fits.ok()) return failedCall<PullInfo>(fits.error());
  CombinedAnswer<PullInfo>::Parts parts;
  for (uint32_t i = 0; i < daemons_.size(); i++) {
    const ModelPartition& partition = daemons_[i].partition;
    const auto part =
        destination.part(partition.begin, destination.empty() ? 0 : partition.count, daemons_[i].nativeBegin);
    parts.push_back({i, daemons_[i].client->pull(part, rowsOf(rows, i))});
  }
  return Pending<PullInfo>(std::make_unique<CombinedAnswer<PullInfo>>(daemons(), std::move(parts)));
}

Pending<PullInfo> PartitionedClient::pullFragment(ArenaValues destination, uint32_t fragment) {
  ending_ = 0;
  if (Status fits = checkLength("the destination of a pull", destination.size()); !fits.ok()) {
    return failedCall<PullInfo>(fits.error());
  }
  const auto holders = holdersOf(fragment);
  if (!holders.ok()) return failedCall<PullInfo>(holders.error());
  CombinedAnswer<PullInfo>::Parts parts;
  for (const size_t i : *holders) {
    const ModelPartition& partition = daemons_[i].partition;
    const auto part = destination.part(partition.begin, partition.count, daemons_[i].nativeBegin);
    parts.push_back({i, daemons_[i].client->pullFragment(part, fragment)});
  }
  return Pending<PullInfo>(std::make_unique<CombinedAnswer<PullInfo>>(daemons(), std::move(parts)));
}

Pending<RoundDue> PartitionedClient::fragmentDue(const std::vector<Version>& basis, uint32_t fragment) {
  const auto holders = holdersOf(fragment);
  if (!holders.ok()) return failedCall<RoundDue>(holders.error());
  const CombinedVersions places = versions();
  std::vector<Pending<RoundDue>> parts;
  for (const size_t i : *holders)
    parts.push_back(daemons_[i].client->fragmentDue(places.of(i, basis), fragment));
  return Pending<RoundDue>(std::make_unique<FirstDue>(std::move(parts)));
}

Pending<PushInfo> PartitionedClient::push(Step step, ConstArenaValues gradient, GradientInfo behind,
                                          const std::vector<Version>& basis, const RowBatch* rows) {
  const std::unique_ptr<PartialPush> push = beginPush(step, gradient, behind, basis, rows);
  push->ready(0, gradient.size());
  return push->finish();
}

std::unique_ptr<PartialPush> PartitionedClient::beginPush(Step step, ConstArenaValues gradient,
                                                          GradientInfo behind,
                                                          const std::vector<Version>& basis,
                                                          const RowBatch* rows) {
  ending_ = 0;
  if (Status fits = checkLength("a gradient", gradient.size()); !fits.ok()) {
    return std::make_unique<FailedPush>(fits.error());
  }
  if (Status fits = checkRows(rows); !fits.ok()) return std::make_unique<FailedPush>(fits.error());
  if (behind.hyperparameters && !behind.hyperparameters->isValid(elements_, tables_.size())) {
    return std::make_unique<FailedPush>(
        Error{ErrorCode::invalidArgument,
              "the hyperparameters of a push do not cover the elements and tables of the model"});
  }
  const auto holders = holdersOf(behind.fragment);
  if (!holders.ok()) return std::make_unique<FailedPush>(holders.error());
  const CombinedVersions places = versions();
  const std::vector<Version> leads = basis.empty() ? basis : places.of(0, basis);
  behind.leadRound = leads.empty() ? 0 : leads.front().value + 1;
  PartialPushToAll::Parts parts;
  for (const size_t i : *holders) {
    const ModelPartition& partition = daemons_[i].partition;
    GradientInfo part = behind;
    if (part.hyperparameters) {
      part.hyperparameters = std::make_shared<const ModelHyperparameters>(
          part.hyperparameters->part(partition.begin, partition.count));
    }
    parts.push_back({i, daemons_[i].client->beginPush(
                            step, gradient.part(partition.begin, partition.count, daemons_[i].nativeBegin),
                            part, places.of(i, basis), rowsOf(rows, static_cast<uint32_t>(i)))});
  }
  return std::make_unique<PartialPushToAll>(daemons(), std::move(parts));
}

Result<OptimizerState> PartitionedClient::fetchState() {
  OptimizerState all;
  for (const Daemon& daemon : daemons_) {
    auto part = daemon.client->fetchState();
    if (!part.ok()) return named(daemon, part.error());
    all.versions.insert(all.versions.end(), part->versions.begin(), part->versions.end());
    all.steps.insert(all.steps.end(), part->steps.begin(), part->steps.end());
    for (const auto& [name, array] : part->arrays) {
      std::vector<float>& whole = all.arrays[name];
      whole.resize(elements_);
      std::ranges::copy(array, whole.begin() + static_cast<ptrdiff_t>(daemon.partition.begin));
    }
  }
  return all;
}

Status PartitionedClient::restoreState(const StateToRestore& state) {
  std::vector<StateToRestore> parts;
  size_t shards = 0;
  for (const Daemon& daemon : daemons_) shards += daemon.client->info().shardCount;
  if (state.steps.size() != shards) {
    return {ErrorCode::invalidArgument,
            fmt::format("steps of {} shards, and the model has {}", state.steps.size(), shards)};
  }
  auto steps = state.steps.begin();
  std::set<std::string> names;
  for (const Daemon& daemon : daemons_) {
    const auto end = steps + daemon.client->info().shardCount;
    StateToRestore& part = parts.emplace_back(StateToRestore{{steps, end}, {}});
    steps = end;
    for (const auto& [name, array] : state.arrays) {
      PSD_RETURN_IF_ERROR(checkLength("an array of the state", array.size()));
      part.arrays[name] = array.subspan(daemon.partition.begin, daemon.partition.count);
    }
    const auto sent = daemon.client->sendState(part);
    if (!sent.ok()) return named(daemon, sent.error());
    names.insert(sent->begin(), sent->end());
  }
  PSD_RETURN_IF_ERROR(checkStates(state, names));
  for (size_t i = 0; i < daemons_.size(); i++) {
    const Status applied = daemons_[i].client->applyState(parts[i].steps);
    if (applied.ok()) continue;
    const Error error = named(daemons_[i], applied.error());
    if (i == 0) return error;
    return {error.code,
            fmt::format("{}; {} of {} daemons have the restored state already: start other daemons",
                        error.message, i, daemons_.size())};
  }
  return {};
}

Result<AssignedSamples> PartitionedClient::takeSamples(const SamplesRequest& request) {
  ending_ = 0;
  Result<AssignedSamples> assigned = lead().takeSamples(request);
  if (!assigned.ok()) return named(daemons_.front(), assigned.error());
  if (assigned->mixed) {
    return Error{ErrorCode::invalidArgument,
                 "batch sizes chosen by the daemon are not supported with several daemons whose parameter "
                 "groups mix policies with rounds and without"};
  }
  // The answer is about the lead's partition, and all parameter groups are alike.
  if (assigned->scaledByTrainer.empty() && assigned->unweightedTables.empty()) return assigned;
  assigned->scaledByTrainer.clear();
  if (elements_ > 0) assigned->scaledByTrainer.push_back({0, elements_});
  assigned->unweightedTables.clear();
  for (uint32_t i = 0; i < tables_.size(); i++) assigned->unweightedTables.push_back(i);
  return assigned;
}

void PartitionedClient::setMovedFrom(const MovedFrom& before) {
  for (size_t i = 0; i < daemons_.size(); i++) {
    MovedFrom own = before;
    if (i > 0) own.held.clear();  // belong to the lead
    daemons_[i].client->setMovedFrom(own);
  }
}

DaemonAddresses PartitionedClient::movedTo(std::chrono::milliseconds within) const {
  const auto until = std::chrono::steady_clock::now() + within;
  for (;;) {
    // The daemon whose end made a call fail has announced the move by then, if there was one. Another
    // daemon's watch may have ended earlier, when that daemon was lost.
    const bool over =
        std::chrono::steady_clock::now() >= until || daemons_[ending_].client->isMoveOutcomeFinal();
    for (const Daemon& daemon : daemons_) {
      if (DaemonAddresses places = daemon.client->movedTo({}); !places.empty()) return places;
    }
    if (over) return {};
    if (!lock_.pause(kMovePollPause)) return {};
  }
}

Result<DaemonAddresses> PartitionedClient::quiesce() {
  const uint64_t move = lead().pendingMoveNumber();
  const uint32_t count = lead().pendingMoveTargets();
  std::vector<RpcClient::QuiesceCall> calls;
  for (const Daemon& daemon : daemons_) calls.push_back(daemon.client->startQuiesce(move, count));
  // If the lead can no longer answer, another daemon may know that the move is complete.
  for (const RpcClient::QuiesceCall& call : calls) {
    if (!lock_.awaitFuture(call.answer)) return waitEndedError();
    const Result<DaemonAddresses> places = call.answer.get();
    if (places.ok() && !places->empty()) return places;
  }
  for (size_t i = 0; i < daemons_.size(); i++) {
    const Result<DaemonAddresses> places = daemons_[i].client->awaitMove(calls[i]);
    if (!places.ok()) return named(daemons_[i], places.error());
    if (!places->empty()) return places;
  }
  return DaemonAddresses();
}

Error PartitionedClient::failed(size_t daemon, const Error& error) {
  if (error.code == ErrorCode::shuttingDown) ending_ = daemon;
  if (isLost(error) && !resumable_) {
    // Final: no trainer at the other daemons has to wait for this one any more.
    ended_ = true;
    interrupt();
    for (size_t i = 0; i < daemons_.size(); i++) {
      // Ordered after the goodbye, which the daemon then has.
      if (i != daemon) (void)daemons_[i].client->ping(1, 1);
    }
  }
  return named(daemons_[daemon], error);
}

template <class Call>
Result<std::vector<std::string>> PartitionedClient::askAll(const Call& call, const char* done) {
  std::vector<std::string> answers;
  for (const Daemon& daemon : daemons_) {
    auto answer = call(*daemon.client);
    if (answer.ok()) {
      answers.push_back(std::move(answer->front()));
      continue;
    }
    const Error error = named(daemon, answer.error());
    if (answers.empty() || done == nullptr) return error;
    return Error{error.code, fmt::format("{}; {} of {} daemons have {} already", error.message,
                                         answers.size(), daemons_.size(), done)};
  }
  return answers;
}

Result<std::vector<std::string>> PartitionedClient::status() {
  return askAll([](RpcClient& daemon) { return daemon.status(); }, nullptr);
}

Result<std::vector<std::string>> PartitionedClient::set(const std::string& assignment) {
  for (const Daemon& daemon : daemons_) {
    const Status may = daemon.client->checkChange(assignment);
    if (may.ok()) continue;
    const Error error = named(daemon, may.error());
    return Error{error.code, error.message + "; nothing has changed"};
  }
  return askAll([&assignment](RpcClient& daemon) { return daemon.set(assignment); }, "changed");
}

Result<std::vector<std::string>> PartitionedClient::checkpoint() {
  PSD_RETURN_IF_ERROR(status().status());  // every daemon answers
  return askAll([](RpcClient& daemon) { return daemon.checkpoint(); }, "taken a checkpoint");
}

Result<std::vector<Rank>> PartitionedClient::waiters() {
  std::set<Rank> all;
  for (const Daemon& daemon : daemons_) {
    const auto ranks = daemon.client->waiters();
    if (!ranks.ok()) return named(daemon, ranks.error());
    all.insert(ranks->begin(), ranks->end());
  }
  return std::vector<Rank>(all.begin(), all.end());
}

Status PartitionedClient::leave() {
  Status all;
  for (size_t i = daemons_.size(); i-- > 0;) {
    const Status left = daemons_[i].client->leave();
    if (!left.ok() && all.ok()) all = named(daemons_[i], left.error());
  }
  return all;
}

void PartitionedClient::interrupt() {
  for (const Daemon& daemon : daemons_) daemon.client->interrupt();
}

uint64_t PartitionedClient::bytesPulled() const {
  uint64_t bytes = 0;
  for (const Daemon& daemon : daemons_) bytes += daemon.client->bytesPulled();
  return bytes;
}

uint64_t PartitionedClient::bytesPushed() const {
  uint64_t bytes = 0;
  for (const Daemon& daemon : daemons_) bytes += daemon.client->bytesPushed();
  return bytes;
}

}  // namespace psd
