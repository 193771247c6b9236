#include "server/control/control.h"

#include <algorithm>
#include <chrono>
#include <random>

#include <spdlog/spdlog.h>

#include "common/text/text.h"
#include "server/config/round_checks.h"

namespace psd {
namespace {

constexpr size_t kRefusalBytesMax = 1000;  // two tensors with all that is shown of them fit

/// Never 0, which stands for none.
uint64_t drawDaemonId() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;
}

void logRefused(const Candidate& candidate, const std::string& why) {
  spdlog::warn("refused {} (process {} on {}): {}",
               candidate.anyRank ? "a trainer of any rank" : "rank " + std::to_string(candidate.rank.value),
               candidate.pid, candidate.host, oneLine(why, kRefusalBytesMax));
}

}  // namespace

Control::Control(std::shared_ptr<const DaemonConfig> config, std::vector<std::shared_ptr<Backend>> backends,
                 Env& env, DaemonCounters& counters, const MemoryBudgets& budgets)
    : config_(std::move(config)),
      backends_(std::move(backends)),
      env_(env),
      counters_(counters),
      budgets_(budgets),
      roster_(config_->worldSize ? Roster(config_->worldSize->max, config_->worldSize->min) : Roster()),
      leases_({std::chrono::milliseconds(config_->membership.leaseMs),
               std::chrono::milliseconds(config_->membership.graceMs)}),
      daemonId_(drawDaemonId()),
      stopRequested_(stopPair_.promise.fork()),
      notified_(noticePair_.promise.fork()),
      ranksGivenUp_(ranksPair_.promise.fork()),
      outcome_(outcomePair_.promise.fork()) {}

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
  recallDeparted(departed);
  std::set<Rank> ranks = models_->ranksBefore();
  for (const Rank gone : roster_.departed()) ranks.erase(gone);
  if (dealtSamples || !ranks.empty()) {
    leases_.grant(kThoseBefore);
    leases_.disconnected(kThoseBefore);
  }
  roster_.keep(std::move(ranks));
  return {};
}

Status Control::saveLast() {
  savedLast_ = true;
  if (runIsOver()) samples_->closeFinished();
  return durability_->finish();
}

Status Control::closeRun() { return runIsOver() ? durability_->forgetDeparted() : Status(); }

kj::Promise<Result<Joined>> Control::join(Candidate candidate, std::vector<HeldSamples> held, ModelSpec model,
                                          std::shared_ptr<EventLoop> loop) {
  if (stopping()) return Result<Joined>(stoppingError());
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
    if (status.ok() && !stopping() && roster_.mayHaveRankLater(candidate)) {
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
    return whenDepartedKept().then([joined = std::move(joined)] { return joined; });
  });
}

kj::Promise<Result<ModelStart::Role>> Control::awaitModel(SessionId session) {
  using Role = ModelStart::Role;
  if (stopping()) return Result<Role>(stoppingError());
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
        return stoppingError();
      });
}

kj::Promise<Result<Samples>> Control::takeSamples(SessionId session, SamplesRequest request) {
  if (stopping()) return Result<Samples>(stoppingError());
  return samples_->take(session, request);
}

Result<std::shared_ptr<ServedModel>> Control::observe(const ModelSpec& model) const {
  if (stopping()) return stoppingError();
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
  if (stopping()) {
    if (what != EndOf::run || !restarting() || notifiedTrainers_) return;
    spdlog::info("the run ends with the daemon: {}", reason);
    endOf_ = what;
    return;
  }
  endOf_ = what;
  stopReason_ = std::move(reason);
  spdlog::info("stopping: {}{}", *stopReason_,
               restarting() && !sessions_.empty() ? "; trainers wait for the next daemon" : "");
  for (auto& [id, session] : sessions_) answerWaiter(session, stoppingError());
  samples_->endWaits(stoppingError());
  ranksPair_.fulfiller->fulfill();
  if (!restarting()) endDisconnected();
  stopPair_.fulfiller->fulfill();
}

void Control::adopt(std::shared_ptr<const DaemonConfig> config, const std::vector<bool>& keepPolicies) {
  config_ = std::move(config);
  models_->adopt(config_, keepPolicies);
}

void Control::notifyTrainers() {
  notifiedTrainers_ = true;
  noticePair_.fulfiller->fulfill({*stopReason_, restarting()});
}

Error Control::stoppingError() const {
  // Whoever is told so tries again, and finds the next one.
  if (restarting()) return {ErrorCode::unavailable, "the daemon restarts: " + stopReason_.value_or("")};
  return {ErrorCode::shuttingDown, "the daemon is shutting down: " + stopReason_.value_or("")};
}

}  // namespace psd
