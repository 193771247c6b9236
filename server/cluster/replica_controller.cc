#include "server/cluster/replica_controller.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <kj/debug.h>
#include <spdlog/spdlog.h>

#include "common/os/socket.h"
#include "server/checkpoint/log_format.h"
#include "server/cluster/replica_text.h"

namespace psd {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{10};
constexpr milliseconds kProbe{250};
constexpr milliseconds kAnswerTime{500};   // for an answer to leave this process
constexpr milliseconds kTold{250};         // for the last notification to a standby
constexpr milliseconds kEngineAgain{500};  // retry pause after an engine error
constexpr milliseconds kMoveAgain{100};    // poll pause while the outcome of a move is unknown
constexpr milliseconds kAbsence{1'000};    // time for the serving daemon to rewrite a document that is gone

ReplicationRules rulesOf(const ReplicationConfig& config) {
  return {.beat = milliseconds(config.heartbeatMs),
          .silence = milliseconds(config.silenceMs),
          .alone = milliseconds(config.aloneMs),
          .wait = config.waits() ? ReplicationRules::Wait::standby : ReplicationRules::Wait::none,
          .absence = kAbsence};
}

}  // namespace

ReplicaController::ReplicaController(ReplicaSettings terms, DaemonId me, Engine& engine,
                                     ServingState& serving, Daemon& daemon, ReplicatedModel& model,
                                     std::shared_ptr<Replicator> replicator, DialPrimary dial,
                                     kj::Timer& timer)
    : terms_(std::move(terms)),
      document_(engine, terms_.documentKey, me, terms_.addresses),
      serving_(serving),
      daemon_(daemon),
      model_(model),
      replicator_(std::move(replicator)),
      dial_(std::move(dial)),
      timer_(timer),
      state_(me, rulesOf(terms_.replication), now()),
      tasks_(*this) {
  withhold();
  tasks_.add(mailbox_.run());
}

ReplicaController::~ReplicaController() noexcept(false) {
  if (connection_) connection_->stop();
}

void ReplicaController::taskFailed(kj::Exception&& exception) {
  spdlog::error("replication: {}", exception.getDescription().cStr());
}

void ReplicaController::start(SavedFolder folder, bool wasRestarted) {
  // If the engine has lost the document that records the move, this daemon would write another one, and
  // serve.
  if (serving_.outgoing().moved()) return;
  folder_ = std::move(folder);
  wasRestarted_ = wasRestarted;
  tasks_.add(document_.read().then([this](Result<ClusterView> plan) -> kj::Promise<void> {
    if (!plan.ok()) return retryStart(plan.error());
    waitsFor_.clear();
    if (document_.moved()) {
      enterMoved();
      return kj::READY_NOW;
    }
    if (wasRestarted_ && document_.ended()) {
      daemon_.exit("the primary has ended the run: the cluster document says that the run is over");
      return kj::READY_NOW;
    }
    rules_ = Rules::decide;
    withhold();
    startedAt_ = now();
    if (folder_.chosen && plan->ended) {
      spdlog::warn(
          "durability.resume selects the state to start from: the last run's state, at {}, is not used",
          document_.addressOf(plan->ended->primary));
    }
    handleEvent([&](TimePoint time) { return state_.start(*plan, 0, time, folder_); });
    tasks_.add(keepTicking());
    tasks_.add(keepWatching());
    return kj::READY_NOW;
  }));
}

kj::Promise<void> ReplicaController::retryStart(const Error& error) {
  if (waitsFor_ != error.message) spdlog::warn("waiting for the cluster document: {}", error.message);
  waitsFor_ = error.message;
  withhold();
  return timer_.afterDelay(kEngineAgain.count() * kj::MILLISECONDS).then([this] {
    start(folder_, wasRestarted_);
  });
}

// --- The rules -----------------------------------------------------------------------------------------

void ReplicaController::handleEvent(const Event& event) {
  if (!active()) return;
  const TimePoint time = now();
  const bool mayWait = terms_.replication.waits();
  const bool followed = feed_ != nullptr && state_.primary() != nullptr;
  // Records appended before the rules have decided wait for the decision.
  if (followed && mayWait) replicator_->waitForStandby(true);
  ReplicaActions actions;
  if (state_.primary()) actions = state_.recordAppended(replicator_->next() - 1, time);
  ReplicaActions more = event(time);
  std::move(more.begin(), more.end(), std::back_inserter(actions));
  const PrimaryState* const primary = state_.primary();
  if (primary) replicator_->waitForStandby(mayWait && primary->waitsFor().has_value());
  for (const ReplicaAction& action : actions) {
    std::visit([this](const auto& what) { act(what); }, action);
  }
  withhold();
}

kj::Promise<void> ReplicaController::keepTicking() {
  const uint64_t pause =
      std::min<uint64_t>(kLook.count(), std::max<uint64_t>(terms_.replication.heartbeatMs / 4, 1));
  return timer_.afterDelay(pause * kj::MILLISECONDS).then([this] {
    tick();
    return keepTicking();
  });
}

void ReplicaController::tick() {
  if (!active()) return;
  pollFollower();
  if (const uint64_t heard = *heardMs_; std::exchange(heardTold_, heard) != heard) {
    handleEvent([&](TimePoint time) { return state_.primaryHeard(time); });
    reportHeld();
  }
  handleEvent([&](TimePoint time) { return state_.tick(time); });
  claimOwnState();
  updateUndecided();
  withhold();
}

void ReplicaController::pollFollower() {
  if (!feed_ || !state_.primary()) return;
  const uint64_t heard = feed_->state().heardMs;
  if (std::exchange(feedHeardMs_, heard) != heard) {
    handleEvent([&](TimePoint time) { return state_.standbyHeard(follower_, time); });
  }
  if (!feed_ || !feed_->state().hasImage) return;  // the rules may just have dropped it
  // Progress reported before is no heartbeat.
  const uint64_t held = replicator_->heldTo() - 1;
  if (std::exchange(feedHeld_, held) == held) return;
  handleEvent([&](TimePoint time) { return state_.standbyHolds(follower_, held, time); });
}

void ReplicaController::reportHeld() {
  if (!hasCopy_ || !copy_) return;
  const auto progress = copy_->progress();
  if (!progress.ok()) {
    // It cannot take over, although the document may name it.
    if (!leaving_) daemon_.restart("the copy of the primary's model is unusable: " + progress.message());
    return;
  }
  const uint64_t number = progress->held > 0 ? progress->held - 1 : 0;
  handleEvent([&](TimePoint time) { return state_.recordsHeld(number, time); });
}

void ReplicaController::claimOwnState() {
  if (!mayClaim_ || !folder_.record || state_.role() != ReplicaRole::syncing) return;
  const ClusterView& plan = state_.plan();
  if (plan.vacant()) return;
  const FolderRecord& ours = *folder_.record;
  // The standby in sync has every answered push on its disk, as long as the document names it.
  const bool standbys = ours.standby && plan.standby == ours.daemon;
  if (!savedByPrimary(ours, plan.primary, plan.term) && !standbys) {
    mayClaim_ = false;  // another daemon serves, or may have newer state
    return;
  }
  const auto wait = milliseconds(2 * terms_.replication.aloneMs);
  // If there is a standby, it has precedence, if it is alive; if this daemon was the standby, the primary
  // has.
  if (plan.standby && (!ours.complete || now() - startedAt_ < wait)) return;
  const bool heard = *heardMs_ > 0 && steadyMs() - *heardMs_ < static_cast<uint64_t>(wait.count());
  if (standbys && (heard || (copy_ && copy_->restoring()))) return;
  handleEvent([&](TimePoint time) { return state_.claim(plan, time); });
}

// --- The cluster document ------------------------------------------------------------------------------

void ReplicaController::learn(const Result<ClusterView>& plan) {
  if (!plan.ok()) return;
  if (plan->vacant() && !document_.trouble().empty() && !state_.plan().vacant()) {
    daemon_.note("engine", document_.trouble());
  }
  if (document_.moved() && serving_.term() == 0) return enterMoved();
  handleEvent([&](TimePoint time) { return state_.documentRead(*plan, time); });
}

kj::Promise<void> ReplicaController::keepWatching() {
  return document_.changed()
      .then([this](Result<ClusterView> plan) -> kj::Promise<void> {
        learn(plan);
        if (plan.ok()) return kj::READY_NOW;
        return timer_.afterDelay(kEngineAgain.count() * kj::MILLISECONDS);
      })
      .then([this] { return keepWatching(); });
}

void ReplicaController::act(const replica_action::Read&) {
  tasks_.add(document_.read().then([this](Result<ClusterView> plan) {
    learn(plan);
    if (!plan.ok()) handleEvent([&](TimePoint time) { return state_.readUnknown(time); });
  }));
}

void ReplicaController::act(const replica_action::Swap& swap) {
  auto swapped = document_.swap(swap.expectedRevision, swap.wanted, followerAddresses_);
  tasks_.add(swapped.then([this](Result<ClusterDocumentClient::Outcome> outcome) {
    if (document_.moved() && serving_.term() == 0) return enterMoved();
    handleEvent([&](TimePoint time) {
      if (!outcome.ok()) return state_.swapUnknown(time);
      return outcome->won ? state_.swapWon(outcome->plan, time) : state_.swapRefused(outcome->plan, time);
    });
  }));
}

// --- As primary ----------------------------------------------------------------------------------------

Result<ReplicaController::Admitted> ReplicaController::admit(const FollowerRequest& request,
                                                             std::shared_ptr<EventLoop> loop) {
  if (request.primary != state_.me()) {
    if (serving_.term() == 0 && !request.addresses.empty() && !isHere(request.addresses))
      peer_ = PeerFolder{request.addresses.front().toString(), request.folderTerm};
    return Error{ErrorCode::standby,
                 fmt::format("this is daemon {}, not {}", hex(state_.me()), hex(request.primary))};
  }
  if (request.follower == DaemonId{}) return Error{ErrorCode::notReady, "only asked for the number"};
  if (serving_.term() == 0) return rejectionReason();
  if (leaving_) return Error{ErrorCode::unavailable, "the daemon is about to exit"};
  if (!active()) return Error{ErrorCode::notReady, "the model is about to move"};
  // An older version would mistake a contributor to an average for the trainer that pushed it, and as primary
  // acknowledge a push that was never made.
  if (request.records < kRecordFormat) {
    return Error{ErrorCode::invalidArgument,
                 "this standby has an older version, which cannot read its primary's log records: start "
                 "it with the primary's version of psd"};
  }
  if (request.addresses.empty())
    return Error{ErrorCode::invalidArgument, "a follower has at least one address"};
  if (!model_.hasValues()) {
    waitingAddresses_ = request.addresses;
    return Error{ErrorCode::notReady, "the model has no values yet"};
  }
  std::shared_ptr<FeedHandle> feed =
      std::make_shared<FeedHandle>(std::move(loop), std::make_shared<FeedState>());
  // Another process at the previous standby's address proves that the latter is dead.
  if (follower_ != DaemonId{} && follower_ != request.follower && request.addresses == followerAddresses_) {
    handleEvent([&](TimePoint time) { return state_.peerDead(follower_, time); });
  }
  const PrimaryState* const primary = state_.primary();
  if (primary->waitsFor() && primary->waitsFor() != request.follower) {
    return Error{ErrorCode::notReady,
                 fmt::format("pushes wait for another standby, {}, until the cluster document no longer "
                             "names it",
                             hex(*primary->waitsFor()))};
  }
  const std::shared_ptr<FeedHandle> before = std::exchange(feed_, feed);
  if (before) close(*before, "another standby follows now");
  waitingAddresses_.clear();
  follower_ = request.follower;
  followerName_ = request.name;
  followerAddresses_ = request.addresses;
  feedHeardMs_ = 0;
  feedHeld_.reset();
  handleEvent([&](TimePoint time) { return state_.standbySubscribed(follower_, time); });
  if (feed_ != feed) return Error{ErrorCode::notReady, "this daemon has another standby"};
  daemon_.note("standby", fmt::format("{} follows as {}", followerName_, hex(follower_)));
  return Admitted{serving_.term(), feed,
                  [this](std::shared_ptr<ImageStream> to) {
                    return executor_->executeAsync(
                        [this, to = std::move(to)]() mutable { return model_.sendCopy(std::move(to)); });
                  },
                  replicator_, terms_.replication};
}

void ReplicaController::close(FeedHandle& feed, const std::string& why) {
  tasks_.add(feed.post([why](ReplicaFeed& open) { open.close({ErrorCode::unavailable, why}); }));
}

void ReplicaController::feedEnded(const std::shared_ptr<FeedHandle>& feed, const Status& why) {
  if (feed != feed_) return;  // of a feed that was replaced
  daemon_.note("standby", fmt::format("{} no longer follows: {}", followerName_, why.message()));
  const DaemonId follower = follower_;
  feed_ = nullptr;
  // It exits, or its copy is unusable: remove it from the document without delay.
  if (why.error().code != ErrorCode::unavailable) {
    handleEvent([&](TimePoint time) { return state_.standbyLeaves(follower, time); });
  }
  handleEvent([&](TimePoint time) { return state_.standbyConnectionGone(follower, time); });
  if (state_.primary() && state_.primary()->waitsFor() == follower)
    probeStandby(follower, followerAddresses_);
}

void ReplicaController::probeStandby(DaemonId standby, std::vector<Address> addresses) {
  tasks_.add(background_
                 .run<bool>([addresses = std::move(addresses)] {
                   return std::ranges::all_of(addresses, [](const Address& address) {
                     bool refused = false;
                     return !connectTo(address, kProbe, &refused).ok() && refused;
                   });
                 })
                 .then([this, standby](bool dead) {
                   if (dead) handleEvent([&](TimePoint time) { return state_.peerDead(standby, time); });
                 }));
}

void ReplicaController::act(const replica_action::NotifyInSync& told) {
  daemon_.note("standby", fmt::format("{} is in sync, by revision {} of the cluster document", followerName_,
                                      told.plan.revision));
  if (feed_ && follower_ == told.standby) tasks_.add(notifyDocumentChanged().ignoreResult());
}

void ReplicaController::act(const replica_action::NotifyTakeover& told) {
  if (feed_ && follower_ == told.standby) lastWord_ = notifyDocumentChanged();
}

kj::Promise<Status> ReplicaController::notifyDocumentChanged() {
  return feed_->ask([](ReplicaFeed& feed) { return feed.notifyDocumentChanged(); });
}

void ReplicaController::act(const replica_action::DropStandby& dropped) {
  if (!feed_ || follower_ != dropped.standby) return;
  const std::shared_ptr<FeedHandle> feed = std::exchange(feed_, nullptr);
  close(*feed, "the primary dropped its standby");
}

void ReplicaController::act(const replica_action::CloseGates&) {
  tasks_.add(daemon_.closeGates().then([this](bool closed) {
    if (closed) handleEvent([&](TimePoint time) { return state_.gatesClosed(time); });
  }));
}

void ReplicaController::act(const replica_action::OpenGates&) {
  daemon_.openGates();
  KJ_IF_MAYBE (switched, switched_) {
    const std::string trouble = document_.trouble();
    (*switched)->fulfill(
        Status(ErrorCode::notReady, trouble.empty()
                                        ? "the standby did not take over in time; this daemon remains primary"
                                        : "the cluster document could not be changed; this daemon remains "
                                          "primary: " +
                                              trouble));
    switched_ = nullptr;
  }
}

kj::Promise<Status> ReplicaController::switchOver() {
  if (serving_.term() == 0)
    return Status(ErrorCode::standby, "this daemon is not the primary; ask " + document_.primaryAddress());
  if (switched_ != nullptr) return Status(ErrorCode::notReady, "another switchover is in progress");
  if (const std::string trouble = document_.trouble(); !trouble.empty())
    return Status(ErrorCode::notReady, "the cluster document cannot be changed now: " + trouble);
  const PrimaryState* const primary = state_.primary();
  if (primary == nullptr || !primary->mayHandOver(now()))
    return Status(ErrorCode::notReady, "there is no standby in sync");
  auto pair = kj::newPromiseAndFulfiller<Status>();
  switched_ = kj::mv(pair.fulfiller);
  handleEvent([&](TimePoint time) { return state_.handOver(time); });
  return kj::mv(pair.promise);
}

// --- A move of the model to other daemons -----------------------------------------------------------------

kj::Promise<Result<bool>> ReplicaController::moveAway(RecordedMove moved) {
  using Answer = Result<bool>;
  if (serving_.term() == 0) return Answer(rejectionReason());
  const auto most = milliseconds(2 * terms_.replication.aloneMs);
  return whenEngineIdle(now() + most)
      .then([this, moved = std::move(moved)](bool idle) -> kj::Promise<Answer> {
        if (!idle || leaving_ || serving_.term() == 0 || !active()) {
          return Answer(ErrorCode::notReady,
                        "the cluster document cannot be changed now" +
                            (document_.trouble().empty() ? "" : ": " + document_.trouble()));
        }
        rules_ = Rules::suspended;
        return retryMoveAway(moved, false);
      });
}

kj::Promise<bool> ReplicaController::whenEngineIdle(TimePoint until) {
  const PrimaryState* const primary = state_.primary();
  const bool busy = primary && (primary->asks() || rules_ == Rules::suspended);
  if (!busy) return primary != nullptr;
  if (now() >= until) return false;
  return timer_.afterDelay(kLook.count() * kj::MILLISECONDS).then([this, until] {
    return whenEngineIdle(until);
  });
}

kj::Promise<Result<bool>> ReplicaController::retryMoveAway(RecordedMove moved, bool told) {
  using Answer = Result<bool>;
  auto asked = document_.moveAway(moved);
  return asked.then([this, told, moved = std::move(moved)](
                        ClusterDocumentClient::Moving came) mutable -> kj::Promise<Answer> {
    if (came == ClusterDocumentClient::Moving::unknown) {
      if (!told) {
        daemon_.note(
            "engine",
            "it is not known yet whether the cluster document records the move; until it is, trainers "
            "wait");
      }
      return timer_.afterDelay(kMoveAgain.count() * kj::MILLISECONDS)
          .then([this, moved = std::move(moved)]() mutable { return retryMoveAway(std::move(moved), true); });
    }
    const bool counts = came == ClusterDocumentClient::Moving::counts;
    rules_ = counts ? Rules::over : Rules::decide;
    if (counts) {
      resolveLeave();
      return Answer(true);
    }
    // Requests that were suspended meanwhile.
    if (leaver_ != nullptr) handleEvent([&](TimePoint time) { return state_.leave(time); });
    act(replica_action::Read{});
    return Answer(false);
  });
}

void ReplicaController::enterMoved() {
  if (std::exchange(rules_, Rules::over) == Rules::over) return;
  withhold();
  leaving_ = true;  // when the primary reports its end, this daemon exits, too
  waitsFor_.clear();
  daemon_.adoptMove(*document_.moved());
  resolveLeave();
}

// --- The end -------------------------------------------------------------------------------------------

void ReplicaController::act(const replica_action::StepDown& down) {
  withhold();
  serving_.stepDown();
  const std::string why =
      document_.ended() ? std::string("another daemon became primary and has ended the run")
      : down.handedOver
          ? fmt::format("daemon {} is the primary from now on", hex(state_.plan().primary))
          : fmt::format(
                "daemon {} is the primary of term {}: updates that were not acknowledged here are discarded",
                hex(state_.plan().primary), state_.plan().term);
  tasks_.add(whenLastNoticeSent()
                 .then([this] {
                   KJ_IF_MAYBE (switched, switched_) {
                     (*switched)->fulfill(Status());
                     switched_ = nullptr;
                     daemon_.disconnectTrainers();
                     return timer_.afterDelay(kAnswerTime.count() * kj::MILLISECONDS);
                   }
                   return kj::Promise<void>(kj::READY_NOW);
                 })
                 .then([this, why] { daemon_.restart(why); }));
}

void ReplicaController::act(const replica_action::MayExit&) {
  tasks_.add(whenLastNoticeSent().then([this] { resolveLeave(); }));
}

void ReplicaController::act(const replica_action::RunOver&) {
  endWithRun("the cluster document says that the run is over");
}

void ReplicaController::resolveLeave() {
  KJ_IF_MAYBE (leaver, leaver_) {
    (*leaver)->fulfill();
    leaver_ = nullptr;
  }
}

kj::Promise<void> ReplicaController::whenLastNoticeSent() {
  auto said = std::exchange(lastWord_, kj::Promise<Status>(Status())).ignoreResult();
  return timer_.timeoutAfter(kTold.count() * kj::MILLISECONDS, kj::mv(said)).catch_([](kj::Exception&&) {});
}

kj::Promise<void> ReplicaController::leave() {
  leaving_ = true;
  const bool takesPart = active() || rules_ == Rules::suspended;
  if (!takesPart || state_.role() == ReplicaRole::ended || leaver_ != nullptr) return kj::READY_NOW;
  auto pair = kj::newPromiseAndFulfiller<void>();
  leaver_ = kj::mv(pair.fulfiller);
  handleEvent([&](TimePoint time) { return state_.leave(time); });
  // The rules answer within a bounded time; the engine may not.
  const uint64_t most = 2 * terms_.replication.aloneMs;
  return timer_.timeoutAfter(most * kj::MILLISECONDS, kj::mv(pair.promise)).catch_([](kj::Exception&&) {
    spdlog::warn("exiting without an answer of the engine");
  });
}

kj::Promise<Status> ReplicaController::endRun(const std::string& reason) {
  leaving_ = true;
  if (serving_.term() == 0) return Status();
  const kj::Duration most = 2 * terms_.replication.silenceMs * kj::MILLISECONDS;
  // A standby that receives neither message takes over and keeps serving until an operator stops it.
  kj::Promise<void> told =
      feed_ ? feed_->ask([reason](ReplicaFeed& feed) { return feed.notifyRunEnded(reason); }).ignoreResult()
            : kj::Promise<void>(kj::READY_NOW);
  told = timer_.timeoutAfter(most, kj::mv(told)).catch_([](kj::Exception&&) {});
  auto end = rules_ == Rules::over ? kj::Promise<Status>(Status())
                                   : endPlan(now() + milliseconds(terms_.replication.silenceMs));
  auto written = timer_.timeoutAfter(most, kj::mv(end)).catch_([](kj::Exception&&) {
    return Status(ErrorCode::unavailable, "no answer in time");
  });
  return told.then([written = kj::mv(written)]() mutable { return kj::mv(written); })
      .then([](const Status& status) -> Status {
        if (status.ok()) return status;
        return {ErrorCode::unavailable, "the engine has not recorded that the run is over (" +
                                            status.message() +
                                            "): daemons that are restarted resume it, or wait for it"};
      });
}

kj::Promise<Status> ReplicaController::endPlan(TimePoint until) {
  // A pending swap may still win, and a later one would overwrite the record of the end.
  return whenEngineIdle(until).then([this](bool) -> kj::Promise<Status> {
    if (rules_ == Rules::over) return Status();  // the document records that the model has moved
    if (rules_ == Rules::suspended) {
      return Status(ErrorCode::unavailable, "it is unknown whether the model has moved");
    }
    handleEvent([&](TimePoint) { return state_.endRun(); });
    return document_.end(model_.saves());
  });
}

// --- Status --------------------------------------------------------------------------------------------

std::vector<Address> ReplicaController::others() const {
  std::vector<Address> all;
  const auto add = [&](const std::vector<Address>& some) {
    for (const Address& address : some) {
      if (std::ranges::find(all, address) == all.end()) all.push_back(address);
    }
  };
  const ClusterView& plan = state_.plan();
  if (!plan.vacant() && plan.primary != state_.me()) add(document_.addressesOf(plan.primary));
  if (plan.ended && document_.addressesOf(plan.ended->primary) != terms_.addresses)
    add(document_.addressesOf(plan.ended->primary));
  if (plan.standby && *plan.standby != state_.me()) add(document_.addressesOf(*plan.standby));
  add(feed_ ? followerAddresses_ : waitingAddresses_);
  return all;
}

ReplicaSetStatus ReplicaController::status() const {
  ReplicaSetStatus out;
  out.daemon = hex(state_.me());
  const bool moved = serving_.outgoing().moved() && serving_.term() == 0;
  out.role = describe(moved ? ReplicaRole::ended : state_.role());
  const ClusterView& plan = state_.plan();
  if (!plan.vacant()) {
    out.term = plan.term;
    out.primary = hex(plan.primary);
    if (plan.standby) out.standby = hex(*plan.standby);
  } else if (plan.ended) {
    out.term = plan.ended->term;
  }
  if (folder_.record) out.folderTerm = folder_.record->term;
  for (const Address& address : others()) out.others.push_back(address.toString());
  out.wait = describe(terms_.replication.wait);
  out.engine = document_.trouble();
  out.waits = waitsFor_;
  out.takeoverSeconds = takeoverSeconds_;
  if (const PrimaryState* const primary = state_.primary()) {
    out.waitsForStandby = terms_.replication.waits() && primary->waitsFor().has_value();
    if (feed_) {
      out.follower = hex(follower_);
      out.lagRecords = replicator_->next() - replicator_->heldTo();
      out.lagBytes = replicator_->lagBytes();
      out.lastContactSeconds = secondsSince(feed_->state().heardMs);
    }
  } else if (copy_) {
    out.lagRecords = copy_->lagRecords();
    out.lagBytes = copy_->lagBytes();
    out.lastContactSeconds = secondsSince(*heardMs_);
  }
  return out;
}

}  // namespace psd
