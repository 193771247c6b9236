#include "test/simulation/replica_daemon.h"

#include <variant>

namespace psd::testing {

namespace action = replica_action;

ReplicaDaemon::ReplicaDaemon(ReplicaHost& host, size_t place, DaemonId id, const ReplicationRules& rules,
                             ReplicaDisk disk, std::optional<Origin> origin)
    : host_(host),
      place_(place),
      id_(id),
      rules_(rules),
      state_(id, rules, host.network().now()),
      log_(disk.log),
      begunWith_(std::move(disk)),
      origin_(origin) {
  withhold();
  if (begunWith_.moved == 0) return;
  markedMove_ = begunWith_.moved;
  suspended_ = true;
  serving_.changeOutgoing([this](auto& state) { state.adopt({markedMove_, {{"target"}}}); });
}

ReplicaDisk ReplicaDaemon::disk() const {
  if (host_.saving() == Saving::log) return {log_, {}, markedMove_};
  if (!saved_) return begunWith_;
  if (state_.role() == ReplicaRole::primary || term_ > 0)
    return {log_, FolderRecord{.daemon = id_, .term = term_, .complete = true}};
  return {log_, FolderRecord{.daemon = id_, .term = heldEpoch_, .standby = true, .complete = true}};
}

void ReplicaDaemon::run(const std::function<void()>& event) {
  if (!alive_) return;
  if (now() >= pausedTill_ && held_.empty()) return event();
  held_.push_back(event);
  if (held_.size() == 1) wakeWhenDue();
}

void ReplicaDaemon::wakeWhenDue() {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(pausedTill_ - now()).count();
  host_.network().after(static_cast<uint64_t>(left), [this] {
    if (now() < pausedTill_) return wakeWhenDue();
    while (!held_.empty() && alive_) {
      const auto event = std::move(held_.front());
      held_.pop_front();
      event();
    }
  });
}

void ReplicaDaemon::after(uint64_t ms, std::function<void()> event) {
  host_.network().after(ms, [this, event = std::move(event)] { run(event); });
}

void ReplicaDaemon::begin() {
  if (markedMove_ != 0) return;
  if (reads_ % 2 == 0) {
    act(action::Read{});
    after(1, [this] { tick(); });
  }
}

void ReplicaDaemon::pause(uint64_t ms) {
  pausedTill_ = std::max(pausedTill_, now() + std::chrono::milliseconds(ms));
}

void ReplicaDaemon::die() {
  alive_ = false;
  if (following_) following_->close(0);
  for (const auto& [id, connection] : followers_) connection->close(1);
}

void ReplicaDaemon::tick() {
  if (host_.finished() || serving_.outgoing().moved()) return;
  perform([&] { return state_.tick(now()); });
  if (alive_ && started_) claimOwnState();
  if (state_.role() == ReplicaRole::primary) beat();
  after(15, [this] { tick(); });
}

void ReplicaDaemon::execute(const ReplicaActions& actions) {
  for (const ReplicaAction& one : actions) {
    if (!alive_) return;
    std::visit([this](const auto& what) { act(what); }, one);
  }
  if (host_.broken() == Broken::addThenWait && state_.role() == ReplicaRole::primary &&
      !state_.plan().standby) {
    answerUpTo(log_.size());
  }
  if (state_.role() != ReplicaRole::primary) withhold();
}

// --- The engine ---

void ReplicaDaemon::act(const action::Swap& swap) {
  if (host_.broken() == Broken::answerThenRemove && swap.wanted.primary == id_ && !swap.wanted.standby &&
      state_.role() == ReplicaRole::primary) {
    answerUpTo(log_.size());
  }
  const bool whatever =
      host_.broken() == Broken::noCas && swap.wanted.primary == id_ && state_.role() == ReplicaRole::standby;
  swaps_ += 1 + swaps_ % 2;
  const uint64_t mine = swaps_;
  host_.engine().swap(
      place_, swap.expectedRevision, swap.wanted, whatever, [this, mine](bool won, const ClusterView& plan) {
        run([this, mine, won, plan] {
          if (swaps_ != mine) return;
          swaps_++;
          if (adoptMove(plan)) return;
          perform([&] { return won ? state_.swapWon(plan, now()) : state_.swapRefused(plan, now()); });
        });
      });
  after(kEngineTimeoutMs, [this, mine] {
    if (swaps_ == mine) swapTimedOut();
  });
}

void ReplicaDaemon::swapTimedOut() {
  swaps_++;
  if (host_.broken() != Broken::noAnswerIsNo || state_.plan().vacant())
    return perform([&] { return state_.swapUnknown(now()); });
  ClusterView refused = state_.plan();
  refused.revision++;
  perform([&] { return state_.swapRefused(refused, now()); });
}

void ReplicaDaemon::act(const action::Read&) {
  reads_ += 1 + reads_ % 2;
  const uint64_t mine = reads_;
  host_.engine().read(place_, [this, mine](const ClusterView& plan) {
    run([this, mine, plan] {
      if (reads_ != mine) return;
      reads_++;
      if (adoptMove(plan)) return;
      const bool first = !std::exchange(started_, true);
      if (!first) return perform([&] { return state_.documentRead(plan, now()); });
      startedAt_ = now();
      SavedFolder folder{begunWith_.record, false};
      if (host_.broken() == Broken::anyFolderBegins) folder = {{}, true};
      perform([&] { return state_.start(plan, log_.size(), now(), folder); });
    });
  });
  after(kEngineTimeoutMs, [this, mine] {
    if (reads_ != mine) return;
    reads_++;
    if (started_) return perform([&] { return state_.readUnknown(now()); });
    act(action::Read{});
  });
}

// --- The primary ---

void ReplicaDaemon::act(const action::Promote& promote) {
  term_ = promote.term;
  serving_.serve(term_);
  gatesOpen_ = true;
  answered_ = log_.size();
  history_ = term_;
  origin_ = Origin{id_, history_};
  const Saving saving = host_.saving();
  if (saving == Saving::none || saving == Saving::log) return;
  // Over its own folder it continues there; with a copy it takes a first checkpoint.
  saved_ = saved_ || heldEpoch_ == 0;
  after(random().between(0, 150), [this] { saved_ = true; });
}

void ReplicaDaemon::claimOwnState() {
  const ClusterView& plan = state_.plan();
  const auto& record = begunWith_.record;
  if (!record || state_.role() != ReplicaRole::syncing || plan.vacant()) return;
  const bool primarys = savedByPrimary(*record, plan.primary, plan.term);
  const bool standbys = savedByStandby(*record, plan.standby);
  if (!primarys && !standbys) return;
  if (plan.standby && now() - startedAt_ < 2 * rules_.alone) return;
  if (standbys && (heldEpoch_ > 0 || now() - heardAt_ < 2 * rules_.alone)) return;
  perform([&] { return state_.claim(plan, now()); });
}

void ReplicaDaemon::endRun() {
  if (state_.role() != ReplicaRole::primary) return;
  gatesOpen_ = false;
  after(random().between(0, 30), [this] {
    if (state_.role() != ReplicaRole::primary) return;
    const bool saves = host_.saving() != Saving::none;
    saved_ = saves;
    for (const auto& [id, connection] : followers_) {
      ReplicaDaemon* standby = host_.living(id);
      if (standby == nullptr) continue;
      connection->send(1, [standby, connection = connection] {
        standby->run([standby, connection] {
          if (standby->isOf(connection)) standby->host_.ended(*standby);
        });
      });
    }
    perform([&] { return state_.endRun(); });
    host_.engine().end(place_, id_, saves);
    after(random().between(1, 100), [this] { host_.ended(*this); });
  });
}

void ReplicaDaemon::push(const ReplicaPush& push) {
  if (state_.role() != ReplicaRole::primary || !gatesOpen_) return;
  // It has reconnected, and so is not quiesced; once all are, it is not admitted.
  if (quiesced_.contains(push.trainer) && !serving_.admits(ServingState::Peer::returningTrainer)) return;
  quiesced_.erase(push.trainer);
  uint64_t number = log_.find(push);
  const bool first = number == 0;
  if (first) {
    log_.append(push);
    number = log_.size();
    for (const auto& [id, connection] : followers_) sendRecord(connection, host_.living(id), number);
  }
  unanswered_.emplace(number, push);
  if (first) perform([&] { return state_.recordAppended(number, now()); });
  answerUpTo(answered_);
}

void ReplicaDaemon::answerUpTo(uint64_t number) {
  answered_ = std::max(answered_, number);
  while (!unanswered_.empty() && unanswered_.begin()->first <= answered_) {
    const ReplicaPush push = unanswered_.extract(unanswered_.begin()).mapped();
    host_.answered(*this, term_, push);
  }
}

void ReplicaDaemon::act(const action::CloseGates&) {
  gatesOpen_ = false;
  after(random().between(0, 20), [this] { perform([&] { return state_.gatesClosed(now()); }); });
}

void ReplicaDaemon::tellPlan(DaemonId to, const ClusterView& plan) {
  auto follower = followers_.find(to);
  ReplicaDaemon* standby = host_.living(to);
  if (follower == followers_.end() || standby == nullptr) return;
  follower->second->send(1, [standby, plan, connection = follower->second] {
    standby->run([standby, plan, connection] {
      if (standby->isOf(connection))
        standby->perform([&] { return standby->state_.documentRead(plan, standby->now()); });
    });
  });
}

void ReplicaDaemon::act(const action::DropStandby& drop) {
  auto follower = followers_.find(drop.standby);
  if (follower == followers_.end()) return;
  follower->second->close(1);
  followers_.erase(follower);
}

void ReplicaDaemon::subscribed(const Connection& connection, DaemonId from, std::optional<Origin> origin,
                               uint64_t held) {
  if (state_.role() != ReplicaRole::primary || !connection->open(1)) return connection->close(1);
  if (auto old = followers_.find(from); old != followers_.end()) old->second->close(1);
  followers_[from] = connection;
  perform([&] { return state_.standbySubscribed(from, now()); });
  ReplicaDaemon* standby = host_.living(from);
  if (!alive_ || !followers_.contains(from) || standby == nullptr) return;
  const Origin mine{id_, history_};
  if (origin == mine && held <= log_.size()) {
    for (uint64_t number = held + 1; number <= log_.size(); number++) sendRecord(connection, standby, number);
    return;
  }
  connection->send(1, [standby, connection, mine, log = log_] {
    standby->run([=] { standby->image(connection, mine, log); });
  });
}

void ReplicaDaemon::sendRecord(const Connection& connection, ReplicaDaemon* to, uint64_t number) {
  if (to == nullptr) return;
  connection->send(1, [to, connection, mine = Origin{id_, history_}, number, push = log_.at(number)] {
    to->run([=] { to->record(connection, mine, number, push); });
  });
}

void ReplicaDaemon::standbyHolds(const Connection& connection, DaemonId from, uint64_t number) {
  auto follower = followers_.find(from);
  if (follower == followers_.end() || follower->second != connection) return;
  perform([&] { return state_.standbyHolds(from, number, now()); });
}

void ReplicaDaemon::standbyGone(const Connection& connection, DaemonId from) {
  auto follower = followers_.find(from);
  if (follower == followers_.end() || follower->second != connection) return;
  followers_.erase(follower);
  perform([&] { return state_.standbyConnectionGone(from, now()); });
}

void ReplicaDaemon::beat() {
  for (const auto& [id, connection] : followers_) {
    ReplicaDaemon* standby = host_.living(id);
    if (standby == nullptr) continue;
    connection->send(1, [standby, connection = connection, mine = Origin{id_, history_}] {
      standby->run([=] { standby->beaten(connection, mine); });
    });
  }
  const auto awaited = state_.primary()->waitsFor();
  if (awaited && !state_.primary()->standby()) probe(*awaited);
}

/// Whether a process still listens there.
void ReplicaDaemon::probe(DaemonId id) {
  ReplicaNetwork& network = host_.network();
  const size_t there = host_.placeOf(id);
  network.send(place_, there, network.delay(), [this, id, there, &network] {
    if (host_.living(id) != nullptr) return;
    network.send(there, place_, network.delay(),
                 [this, id] { run([this, id] { perform([&] { return state_.peerDead(id, now()); }); }); });
  });
}

// --- The follower ---

void ReplicaDaemon::act(const action::Follow& follow) {
  if (following_ && target_ != follow.primary) act(action::CloseReplication{});
  target_ = follow.primary;
  if (!std::exchange(dialling_, true)) dial();
}

void ReplicaDaemon::act(const action::CloseReplication&) {
  target_.reset();
  if (following_) following_->close(0);
  following_.reset();
}

void ReplicaDaemon::act(const action::NotifyLeaving&) {
  if (!following_ || !target_) return;
  if (ReplicaDaemon* primary = host_.living(*target_)) {
    following_->send(0, [primary, id = id_] {
      primary->run(
          [=] { primary->perform([&] { return primary->state_.standbyLeaves(id, primary->now()); }); });
    });
  }
}

void ReplicaDaemon::dial() {
  dialling_ = target_ && !host_.finished();
  if (!dialling_) return;
  after(random().between(15, 40), [this] { dial(); });
  if (following_) return;
  ReplicaNetwork& network = host_.network();
  const size_t there = host_.placeOf(*target_);
  network.send(place_, there, network.delay(), [this, there, id = *target_, &network] {
    network.send(there, place_, network.delay(), [this, id, found = host_.living(id)] {
      run([this, id, found] {
        if (target_ != id || following_) return;
        if (found == nullptr) return perform([&] { return state_.peerDead(id, now()); });
        connected(*found);
      });
    });
  });
}

void ReplicaDaemon::connected(ReplicaDaemon& primary) {
  auto slot = std::make_shared<std::weak_ptr<ReplicaConnection>>();
  following_ = std::make_shared<ReplicaConnection>(
      host_.network(), std::array<size_t, 2>{place_, primary.place_},
      std::array<ReplicaConnection::Event, 2>{
          [this, slot] {
            run([this, connection = slot->lock()] {
              if (!connection || !isOf(connection)) return;
              following_.reset();
              perform([&] { return state_.primaryConnectionGone(now()); });
            });
          },
          [&primary, slot, id = id_] {
            primary.run([&primary, connection = slot->lock(), id] { primary.standbyGone(connection, id); });
          }});
  *slot = following_;
  following_->send(0, [&primary, connection = following_, id = id_, origin = origin_, held = log_.size()] {
    primary.run([=, &primary] { primary.subscribed(connection, id, origin, held); });
  });
}

void ReplicaDaemon::image(const Connection& connection, const Origin& origin, const ReplicaLog& log) {
  if (!isOf(connection) || !state_.takes(origin.primary, origin.term)) return;
  log_ = log;
  origin_ = origin;
  heldEpoch_ = origin.term;
  saved_ = host_.saving() == Saving::both;
  holds();
}

void ReplicaDaemon::record(const Connection& connection, const Origin& origin, uint64_t number,
                           const ReplicaPush& push) {
  if (!isOf(connection) || !state_.takes(origin.primary, origin.term)) return;
  if (origin_ != origin || number != log_.size() + 1) return;
  log_.append(push);
  holds();
}

void ReplicaDaemon::beaten(const Connection& connection, const Origin& origin) {
  if (!isOf(connection) || !state_.takes(origin.primary, origin.term)) return;
  heardAt_ = now();
  perform([&] { return state_.primaryHeard(now()); });
  if (origin_ == origin) holds();
}

void ReplicaDaemon::holds() {
  perform([&] { return state_.recordsHeld(log_.size(), now()); });
  ReplicaDaemon* primary = target_ ? host_.living(*target_) : nullptr;
  if (!alive_ || !following_ || primary == nullptr) return;
  following_->send(0, [primary, connection = following_, id = id_, number = log_.size()] {
    primary->run([=] { primary->standbyHolds(connection, id, number); });
  });
}

}  // namespace psd::testing
