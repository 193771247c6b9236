#include "server/control/control.h"

#include <algorithm>
#include <chrono>

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include "common/os/random_id.h"
#include "common/text/text.h"
#include "server/config/round_checks.h"
#include "server/metrics/steady_clock.h"

namespace psd {
namespace {

constexpr size_t kRefusalBytesMax = 1000;  // two tensors with all that is shown of them fit

void logRefused(const Candidate& candidate, const std::string& why) {
  spdlog::warn("refused {} (process {} on {}): {}",
               candidate.anyRank ? "a trainer of any rank" : "rank " + std::to_string(candidate.rank.value),
               candidate.pid, candidate.host, oneLine(why, kRefusalBytesMax));
}

/// What a trainer waits for; empty: for nothing, it computes.
const char* waitsFor(const SessionCounters& counters) {
  if (counters.waitForModel.value() != 0) return "model";
  if (counters.waitForSamples.value() != 0) return "samples";
  if (counters.waitForPush.value() != 0) return "push";
  return counters.waitForParameters.value() != 0 ? "pull" : "";
}

}  // namespace

Control::Control(std::shared_ptr<const DaemonConfig> config, std::vector<std::shared_ptr<Backend>> backends,
                 Env& env, DaemonMetrics& counters, const MemoryBudgets& budgets)
    : config_(std::move(config)),
      backends_(std::move(backends)),
      env_(env),
      counters_(counters),
      budgets_(budgets),
      roster_(config_->worldSize ? Roster(config_->worldSize->max, config_->worldSize->min) : Roster()),
      leases_({std::chrono::milliseconds(config_->membership.leaseMs),
               std::chrono::milliseconds(config_->membership.graceMs)}),
      daemonId_(drawId()),
      ranksGivenUp_(ranksPair_.promise.fork()) {}

Status Control::mayFollow(const DaemonConfig& config) const {
  for (const auto& [id, session] : sessions_) {
    PSD_ASSIGN_OR_RETURN(const auto codec, makeCodec(session.candidate.codec));
    if (Status fits = checkPushCodec(*codec, config.groups); !fits.ok()) {
      return {fits.error().code,
              "rank " + std::to_string(session.candidate.rank.value) + " pushes: " + fits.message()};
    }
  }
  const uint32_t trainers = std::max(roster_.worldSize(), config.worldSize ? config.worldSize->max : 0);
  return checkRounds(config, backends_, trainers);
}

Status Control::prepare() {
  PSD_RETURN_IF_ERROR(mayFollow(*config_));
  PSD_ASSIGN_OR_RETURN(durability_, Durability::open(env_, config_->durability, budgets_.logPending,
                                                     &counters_.logSyncSeconds));
  models_ =
      std::make_unique<ModelHost>(config_, backends_, env_, *durability_, counters_, budgets_.snapshots);
  samples_ = std::make_unique<SampleDealer>(*durability_, *models_);
  PSD_ASSIGN_OR_RETURN(const std::optional<Checkpoint> checkpoint, durability_->find());
  PSD_RETURN_IF_ERROR(checkpoint ? models_->goOnFrom(*checkpoint) : models_->load());
  const bool dealtSamples = checkpoint && samples_->recall(config_->exitWhenDone);
  std::optional<Departed> departed;
  if (config_->exitWhenDone) {
    PSD_ASSIGN_OR_RETURN(departed, durability_->departed());
  }
  models_->beginSavingAtOnce();
  restoreFinishedRanks(departed);
  std::set<Rank> ranks = models_->ranksBefore();
  for (const Rank gone : roster_.departed()) ranks.erase(gone);
  if (dealtSamples || !ranks.empty()) {
    leases_.grant(kPriorRunTrainers);
    leases_.disconnected(kPriorRunTrainers);
  }
  roster_.keep(std::move(ranks));
  return {};
}

Status Control::saveLast() {
  savedLast_ = true;
  if (runIsOver()) samples_->closeFinished();
  return durability_->finish();
}

Status Control::closeRun() { return runIsOver() ? durability_->forgetFinishedRanks() : Status(); }

kj::Promise<Result<Joined>> Control::join(Candidate candidate, std::vector<HeldSamples> held, ModelSpec model,
                                          std::shared_ptr<EventLoop> loop) {
  if (end_.requested()) return Result<Joined>(end_.error());
  if (model.tensors.empty()) {
    return Result<Joined>(ErrorCode::invalidArgument, "a trainer's model has at least one tensor");
  }
  candidate.returns = candidate.lastDaemon == daemonId_;
  if (!models_->model() && !roster_.mayHaveRankLater(candidate)) {  // one is made for somebody who fits
    Candidate asked = candidate;
    Status fits = roster_.place(asked);
    if (fits.ok()) fits = roster_.mayJoin(asked);
    if (!fits.ok()) {
      logRefused(candidate, fits.message());
      return Result<Joined>(fits.error());
    }
  }
  return models_->provide(model).then([this, candidate = std::move(candidate), held = std::move(held),
                                       model = std::move(model), loop = std::move(loop)](
                                          Status status) mutable -> kj::Promise<Result<Joined>> {
    // Until now it may have gone again, with the last of those who had joined.
    if (status.ok() && !models_->serves(model)) {
      return join(std::move(candidate), std::move(held), std::move(model), std::move(loop));
    }
    if (status.ok() && !end_.requested() && roster_.mayHaveRankLater(candidate)) {
      return ranksGivenUp_.addBranch().then([this, candidate = std::move(candidate), held = std::move(held),
                                             model = std::move(model), loop = std::move(loop)]() mutable {
        return join(std::move(candidate), std::move(held), std::move(model), std::move(loop));
      });
    }
    Result<Joined> joined = status.ok() ? admit(candidate, held, loop) : Result<Joined>(status.error());
    if (!joined.ok()) {
      logRefused(candidate, joined.message());
      dropUnclaimed();
      return joined;
    }
    return whenFinishedRanksKept().then([joined = std::move(joined)] { return joined; });
  });
}

kj::Promise<Result<ModelStart::Role>> Control::awaitModel(SessionId session) {
  using Role = ModelStart::Role;
  if (end_.requested()) return Result<Role>(end_.error());
  if (models_->start().ready()) return Result<Role>(Role::go);
  if (models_->start().bringer() == session) return Result<Role>(Role::bringValues);
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
  if (!models_->start().complete(session)) {
    return Status(ErrorCode::invalidArgument, "this trainer was not asked for the initial values");
  }
  return models_->beginSaving().then(
      [this] {
        models_->start().open();
        spdlog::info("the model has its initial values");
        for (auto& [id, waiting] : sessions_) answerWaiter(waiting, ModelStart::Role::go);
        return Status();
      },
      [this](kj::Exception&& exception) -> Status {  // no thread
        requestStop(std::string("nothing can be saved: ") + exception.getDescription().cStr());
        return end_.error();
      });
}

kj::Promise<Result<Samples>> Control::takeSamples(SessionId session, SamplesRequest request) {
  if (end_.requested()) return Result<Samples>(end_.error());
  return samples_->take(session, request);
}

Result<std::shared_ptr<ServedModel>> Control::observe(const ModelSpec& model) const {
  if (end_.requested()) return end_.error();
  if (!models_->ready()) {
    return Error{ErrorCode::notReady,
                 "the daemon has no model yet; a trainer brings it, or `model.file` in its config"};
  }
  if (!model.tensors.empty()) {
    PSD_RETURN_IF_ERROR(checkSameModel(models_->model()->store->model(), model));
  }
  return models_->model();
}

void Control::requestStop(std::string reason, EndOf what) {
  if (!end_.request(std::move(reason), what, !sessions_.empty())) return;
  for (auto& [id, session] : sessions_) answerWaiter(session, end_.error());
  samples_->endWaits(end_.error());
  ranksPair_.fulfiller->fulfill();
  if (!end_.restarting()) endDisconnected();
  end_.begin();
}

void Control::adopt(std::shared_ptr<const DaemonConfig> config, const std::vector<bool>& keepPolicies) {
  config_ = std::move(config);
  models_->adopt(config_, keepPolicies);
}

TrainerStatus Control::trainerStatus(SessionId id, const Session& session) const {
  const SessionCounters& counters = *session.life.counters;
  const uint64_t now = steadyMs(), seen = counters.lastSeenMs.value();
  return {.rank = session.candidate.rank.value,
          .host = session.candidate.host,
          .pid = session.candidate.pid,
          .incarnation = fmt::format("{:016x}", session.candidate.incarnation),
          .step = counters.step.value(),
          .staleness = counters.staleness.value(),
          .batch = counters.samples.value(),
          .nominalBatch = samples_->nominalOf(id),
          .pulledBytes = counters.bytesPulled.value(),
          .pushedBytes = counters.bytesPushed.value(),
          .pulledValueBytes = counters.valueBytesPulled.value(),
          .pushedValueBytes = counters.valueBytesPushed.value(),
          .codec = session.candidate.codec,
          .pullCodec = session.candidate.pullCodec,
          .lastSeenSeconds = static_cast<double>(now > seen ? now - seen : 0) / 1000,
          .waitsFor = waitsFor(counters),
          .connected = leases_.connected(id),
          .connections = counters.connections.value(),
          .leaseLeftSeconds = static_cast<double>(leases_.left(id).count()) / 1000};
}

void Control::fillStatus(DaemonStatus& status) const {
  status.state = end_.requested() ? "stopping" : models_->ready() ? "serving" : "waiting for a model";
  models_->fillStatus(status);
  status.worldSize = roster_.worldSize();
  status.worldSizeMin = roster_.worldSizeMin();
  status.trainersLost = roster_.lostCount();
  for (const auto& [id, session] : sessions_) status.trainers.push_back(trainerStatus(id, session));
  status.samples = samples_->status();
  status.durability = durability_->status();
  status.counters = MetricValues<Counter>(counters_);
  status.gauges = MetricValues<Gauge>(counters_);
  status.histograms = MetricValues<Histogram>(counters_);
}

}  // namespace psd
