#include "test/simulation/replica_world.h"

#include <algorithm>

namespace psd::testing {
namespace {

constexpr uint64_t kAbsenceMs = 1000;
constexpr uint64_t kFaultsMs = kAbsenceMs + 2500;
constexpr uint64_t kSettledMs = 10'000;  // this long after the last fault everything is as it should be

std::string text(DaemonId id) { return std::to_string(id.value); }

}  // namespace

ReplicaWorld::ReplicaWorld(Random& random, Broken broken, ReplicationRules::Wait wait, Saving saving)
    : random_(random), broken_(broken), saving_(saving), network_(random, time_), engine_(network_) {
  using std::chrono::milliseconds;
  rules_ = {milliseconds(15), milliseconds(60), milliseconds(150), wait,
            milliseconds(broken == Broken::beginsAtOnce ? 0 : kAbsenceMs)};
  places_.resize(random.oneIn(3) ? 3 : 2);
  engine_.whenWritten([this](const ClusterView& before) { written(before); });
}

std::string ReplicaWorld::run() {
  for (size_t place = 0; place < places_.size(); place++) {
    network_.after(random_.between(0, 20), [this, place] { restart(place); });
  }
  for (size_t i = 0; i < trainers_.size(); i++) network_.after(5 + i, [this, i] { train(i); });
  network_.after(kAbsenceMs + random_.between(50, 400), [this] { injectFault(); });
  network_.after(kFaultsMs, [this] { heal(); });
  if (!time_.run(2'000'000, [this] { checkInvariants(); })) violated("too many events");
  return violation_;
}

void ReplicaWorld::checkInvariants() {
  for (const Place& place : places_) {
    if (place.daemon == nullptr) continue;
    checkInvariants(place.daemon->state());
    checkInvariants(place.daemon->serving());
  }
}

// --- Processes ---

ReplicaDaemon* ReplicaWorld::living(DaemonId id) {
  auto place = placesOfIds_.find(id);
  if (place == placesOfIds_.end()) return nullptr;
  ReplicaDaemon* daemon = places_[place->second].daemon;
  return daemon != nullptr && daemon->id() == id ? daemon : nullptr;
}

void ReplicaWorld::start(size_t place, ReplicaDisk disk, std::optional<ReplicaDaemon::Origin> origin) {
  Place& here = places_[place];
  const bool same = broken_ == Broken::sameName && here.lastId.value != 0;
  const DaemonId id = same ? here.lastId : DaemonId{++lastId_};
  placesOfIds_[id] = place;
  here.lastId = id;
  daemons_.push_back(std::make_unique<ReplicaDaemon>(static_cast<ReplicaHost&>(*this), place, id, rules_,
                                                     std::move(disk), origin));
  here.daemon = daemons_.back().get();
  here.daemon->begin();
}

/// A process starts with what the last one there left on its disk, as the log of updates would have it.
void ReplicaWorld::restart(size_t place) {
  if (places_[place].daemon != nullptr || finished()) return;
  start(place, broken_ == Broken::sameName ? ReplicaDisk() : places_[place].disk, std::nullopt);
}

void ReplicaWorld::die(size_t place) {
  Place& here = places_[place];
  if (here.daemon == nullptr) return;
  here.daemon->die();
  here.disk = here.daemon->disk();
  here.daemon = nullptr;
  network_.after(random_.between(5, 600), [this, place] { restart(place); });
}

void ReplicaWorld::steppedDown(ReplicaDaemon& daemon, bool handedOver) {
  counts_.steppedDown++;
  const size_t place = daemon.place();
  const ClusterView plan = daemon.state().plan();
  const bool keeps = broken_ == Broken::keepsState || (handedOver && random_.oneIn(2));
  daemon.die();
  places_[place].daemon = nullptr;
  if (saving_ != Saving::log) {
    places_[place].disk = daemon.disk();
    start(place, places_[place].disk, std::nullopt);
  } else if (keeps) {
    start(place, {daemon.log(), {}}, ReplicaDaemon::Origin{plan.primary, plan.term});
  } else {
    start(place, {}, std::nullopt);
  }
}

// --- Faults ---

void ReplicaWorld::injectFault() {
  if (!mishaps_ || finished()) return;
  const uint64_t losses = losses_;
  const uint64_t kind = random_.between(0, 99);
  const size_t place = random_.below(places_.size());
  if (saving_ != Saving::log && random_.oneIn(3)) {
    endSomething(kind);
  } else if (kind < 52) {
    cutSomething(kind);
  } else if (kind < 67) {
    if (places_[place].daemon != nullptr) places_[place].daemon->pause(random_.between(20, 700));
  } else if (kind < 82) {
    crash(place);
  } else if (kind < 87) {
    engine_.setAway(true);
    network_.after(random_.between(50, 800), [this] { engine_.setAway(false); });
  } else if (kind < 91) {
    onPrimary(&ReplicaDaemon::handOver);
  } else if (kind < 94) {
    if (places_[place].daemon != nullptr) places_[place].daemon->leave();
  } else if (kind < 96) {
    engine_.touch();
  } else if (kind < 98) {
    loseDocument();
  } else {
    recoverIfDead();
  }
  // A loss followed by a cut needs an operator.
  const uint64_t quiet = losses_ > losses ? 800 : 0;
  network_.after(quiet + random_.between(20, 500), [this] { injectFault(); });
}

/// The run, all daemons, or the document of dead ones.
void ReplicaWorld::endSomething(uint64_t kind) {
  if (kind < 40) {
    const ReplicaDaemon* primary = living(engine_.plan().primary);
    if (primary != nullptr) onPrimary(&ReplicaDaemon::endRun);
  } else if (kind < 60) {
    for (size_t place = 0; place < places_.size(); place++) die(place);
  } else if (kind < 70) {
    if (places_.front().daemon != nullptr) die(random_.below(places_.size()));
  } else if (kind < 85) {
    const bool anyServes = std::any_of(places_.begin(), places_.end(), [](const Place& place) {
      if (place.daemon == nullptr) return false;
      const ReplicaRole role = place.daemon->state().role();
      return role == ReplicaRole::primary || role == ReplicaRole::standby;
    });
    if (anyServes) return;
    losses_++;
    engine_.lose();
    primaryOfTerm_.clear();  // terms may repeat
    notifyAll(10);
  } else {
    decide();
  }
}

void ReplicaWorld::decide() {
  // A run started before the folder with another one's state was present.
  for (size_t place = 0; place < places_.size(); place++) {
    ReplicaDaemon* daemon = places_[place].daemon;
    if (daemon == nullptr || !daemon->state().contradicts()) continue;
    counts_.contradicted++;
    die(place);
    places_[place].disk = {};
    return;
  }
  const ClusterView& plan = engine_.plan();
  if (!plan.vacant() && (living(plan.primary) || (plan.standby && living(*plan.standby)))) return;
  if (plan.vacant() && !plan.ended) return;
  ReplicaDaemon* best = nullptr;
  const auto sum = [](const ReplicaDaemon& daemon) {
    uint64_t steps = 0;
    for (const uint64_t whole : daemon.log().whole()) steps += whole;
    return steps;
  };
  for (const Place& place : places_) {
    // One that has not started may have more.
    if (place.daemon == nullptr || !place.daemon->started() || place.daemon->isStalled()) return;
    if (place.daemon->state().role() != ReplicaRole::syncing) return;
    if (best == nullptr || sum(*place.daemon) > sum(*best)) best = place.daemon;
  }
  decided_ = best->id();
  best->run([best, plan] { best->claim(plan); });
}

/// Pushes that are not in it are lost, by decision or announcement.
void ReplicaWorld::loseUnheld(const ReplicaLog& log) {
  for (size_t i = 0; i < answered_.size(); i++) {
    if (answered_[i] <= log.whole()[i]) continue;
    counts_.given += answered_[i] - log.whole()[i];
    answered_[i] = log.whole()[i];
    trainers_[i] = {.step = answered_[i]};
    rollbacks_++;
  }
}

void ReplicaWorld::cutSomething(uint64_t kind) {
  using Way = std::pair<size_t, size_t>;
  constexpr size_t kE = ReplicaNetwork::kEngine, kT = ReplicaNetwork::kTrainers;
  static constexpr std::array<Way, 5> kWays{Way{0, 1}, Way{0, kE}, Way{1, kE}, Way{0, kT}, Way{1, kT}};
  const uint64_t ms = random_.between(20, 700);
  auto [one, other] = kWays[random_.below(kWays.size())];
  if (random_.oneIn(2)) std::swap(one, other);
  if (kind < 40) {
    network_.cut(one, other, ms);
    if (kind < 26) network_.cut(other, one, ms);
    return;
  }
  const size_t alone = random_.below(places_.size());
  for (size_t place = 0; place < ReplicaNetwork::kPlaces; place++) {
    network_.cut(alone, place, ms);
    network_.cut(place, alone, ms);
  }
}

/// Mostly while the others are there to continue.
void ReplicaWorld::crash(size_t place) {
  const bool allThere =
      std::all_of(places_.begin(), places_.end(), [](const Place& one) { return one.daemon != nullptr; });
  if ((allThere && engine_.plan().standby) || random_.oneIn(8)) die(place);
}

void ReplicaWorld::onPrimary(void (ReplicaDaemon::*call)()) {
  if (ReplicaDaemon* primary = living(engine_.plan().primary)) primary->run([=] { (primary->*call)(); });
}

/// Acts like an operator: the primary is dead, no daemon may take over, and this one holds everything that
/// was answered.
void ReplicaWorld::recoverIfDead() {
  const ClusterView& plan = engine_.plan();
  if (plan.vacant() || living(plan.primary) || (plan.standby && living(*plan.standby))) return;
  for (const Place& place : places_) {
    ReplicaDaemon* daemon = place.daemon;
    if (daemon == nullptr || !daemon->started()) continue;
    if (rules_.wait == ReplicationRules::Wait::standby && !daemon->log().holds(answered_)) continue;
    if (daemon->state().role() != ReplicaRole::syncing) continue;
    daemon->run([daemon, plan] { daemon->claim(plan); });
    return;
  }
}

/// The engine loses everything, while the primary is alive and connected to the engine: a simultaneous loss
/// of both needs an operator.
void ReplicaWorld::loseDocument() {
  ReplicaDaemon* primary = living(engine_.plan().primary);
  if (engine_.away() || primary == nullptr || primary->state().role() != ReplicaRole::primary) return;
  if (primary->gatesClosed() || primary->isStalled()) return;
  if (!network_.openBothWays(primary->place(), ReplicaNetwork::kEngine)) return;
  losses_++;
  lostAt_ = network_.now();
  engine_.lose();
  notifyAll(10);
}

/// Notifies daemons of another document, like watches and the reads beside them.
void ReplicaWorld::notifyAll(uint64_t times) {
  for (size_t place = 0; place < places_.size(); place++) {
    network_.send(ReplicaNetwork::kEngine, place, network_.delay(), [this, place, plan = engine_.plan()] {
      ReplicaDaemon* daemon = places_[place].daemon;
      if (daemon != nullptr) daemon->run([daemon, plan] { daemon->learn(plan); });
    });
  }
  if (times > 1) network_.after(30, [this, times] { notifyAll(times - 1); });
}

void ReplicaWorld::heal() {
  mishaps_ = false;
  network_.heal();
  engine_.setAway(false);
  settle();
}

/// Everything that was started is answered, and the replica set is redundant, as every daemon knows.
bool ReplicaWorld::whole() const {
  const ClusterView& plan = engine_.plan();
  for (const Trainer& one : trainers_) {
    if (one.open) return false;
  }
  size_t primaries = 0, standbys = 0;
  for (const Place& place : places_) {
    if (place.daemon == nullptr) return false;
    const ReplicaRole role = place.daemon->state().role();
    if (role == ReplicaRole::primary && plan.primary != place.daemon->id()) return false;
    if (role == ReplicaRole::standby && plan.standby != place.daemon->id()) return false;
    primaries += role == ReplicaRole::primary;
    standbys += role == ReplicaRole::standby;
  }
  return primaries == 1 && standbys == 1;
}

void ReplicaWorld::settle() {
  if (finished()) return;
  if (whole()) {
    finished_ = true;
    return check("at the end");
  }
  if (time_.now() > TimePoint{} + std::chrono::milliseconds(kFaultsMs + kSettledMs)) {
    const ClusterView& plan = engine_.plan();
    std::string what = "after the last fault the replica set is not redundant again: the document names " +
                       text(plan.primary) + (plan.standby ? " and " + text(*plan.standby) : "");
    for (const Place& place : places_) {
      if (place.daemon == nullptr) continue;
      what += ", " + text(place.daemon->id()) + " is " + std::string(describe(place.daemon->state().role()));
    }
    return violated(what + unfinished());
  }
  recoverIfDead();
  if (saving_ != Saving::log && random_.oneIn(5)) decide();
  network_.after(100, [this] { settle(); });
}

// --- Trainers ---

void ReplicaWorld::train(size_t trainer) {
  if (finished()) return;
  Trainer& self = trainers_[trainer];
  if (!self.open) {
    if (!mishaps_) return;
    self.step++;
    self.open = true;
  }
  for (size_t place = 0; place < places_.size(); place++) {
    network_.send(ReplicaNetwork::kTrainers, place, network_.delay(),
                  [this, place, push = ReplicaPush{trainer, self.step}, givenUp = rollbacks_] {
                    ReplicaDaemon* daemon = places_[place].daemon;
                    if (daemon == nullptr) return;
                    daemon->run([this, daemon, push, givenUp] {
                      if (givenUp == rollbacks_) daemon->push(push);
                    });
                  });
  }
  network_.after(random_.between(8, 30), [this, trainer] { train(trainer); });
}

// --- Invariants ---

void ReplicaWorld::answered(ReplicaDaemon& daemon, uint64_t term, const ReplicaPush& push) {
  const auto [first, isFirst] = primaryOfTerm_.emplace(term, daemon.id());
  if (first->second != daemon.id()) {
    violated(text(first->second) + " and " + text(daemon.id()) + " answered pushes of term " +
             std::to_string(term));
  }
  uint64_t& last = answered_[push.trainer];
  if (push.step > last) {
    last = push.step;
    counts_.answered++;
  }
  check("after an answer by " + text(daemon.id()));
  network_.send(daemon.place(), ReplicaNetwork::kTrainers, network_.delay(),
                [this, push, givenUp = rollbacks_] {
                  Trainer& trainer = trainers_[push.trainer];
                  if (givenUp == rollbacks_ && trainer.step == push.step) trainer.open = false;
                });
}

void ReplicaWorld::written(const ClusterView& before) {
  const ClusterView& plan = engine_.plan();
  if (plan.sameGroup(before)) return;
  counts_.swaps++;
  if (plan.ended) {
    (plan.ended->guessed() ? counts_.guessed : counts_.ends)++;
    return;
  }
  const bool decided = decided_ == plan.primary && plan.term != before.term;
  // Without a document no daemon knows of the folder of a daemon that is not started.
  const bool fresh = saving_ != Saving::log && before.vacant() && !before.ended && plan.term == 1;
  const bool savedNothing = fresh || (saving_ == Saving::none && plan.term != before.term);
  if (ReplicaDaemon* primary = living(plan.primary); primary != nullptr && (decided || savedNothing))
    loseUnheld(primary->log());
  if (before.ended) {
    (decided ? counts_.decided : counts_.begun)++;
  } else if (plan.term == before.term) {
    counts_.added += plan.standby.has_value();
    counts_.removed += !plan.standby;
  } else if (before.vacant()) {
    counts_.renewed += before.revision > 0 && plan.term > 1;
  } else {
    ReplicaDaemon* old = living(before.primary);
    const bool handedOver =
        old != nullptr && old->state().role() == ReplicaRole::primary && old->gatesClosed();
    (before.standby != plan.primary ? counts_.claims : handedOver ? counts_.handovers : counts_.failovers)++;
  }
  check("after a swap");
}

/// Any daemon that the document lets serve, now or by takeover, holds every answered push, and none twice.
void ReplicaWorld::check(const std::string& when) {
  const ClusterView& plan = engine_.plan();
  if (plan.vacant()) return;
  checkHolds(plan.primary, when);
  if (plan.standby) checkHolds(*plan.standby, when);
}

void ReplicaWorld::checkHolds(DaemonId id, const std::string& when) {
  ReplicaDaemon* daemon = living(id);
  if (daemon == nullptr) return;
  if (daemon->log().twice()) violated(when + " " + text(id) + " has a push twice");
  if (rules_.wait == ReplicationRules::Wait::standby && !daemon->log().holds(answered_)) {
    violated(when + " " + text(id) + " lacks an answered push");
  }
}

}  // namespace psd::testing
