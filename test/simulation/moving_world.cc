#include "test/simulation/moving_world.h"

#include <algorithm>

namespace psd::testing {
namespace {

constexpr uint64_t kCallMs = 300, kPollMs = 100;
constexpr size_t kTarget = ReplicaNetwork::kTarget, kOther = ReplicaNetwork::kOther;
constexpr size_t kCommand = ReplicaNetwork::kCommand, kTrainers = ReplicaNetwork::kTrainers;

Error lost() { return {ErrorCode::unavailable, "no answer"}; }

}  // namespace

MovingWorld::MovingWorld(Random& random, Broken broken)
    : ReplicaWorld(random, broken, ReplicationRules::Wait::standby) {}

void MovingWorld::checkInvariants() {
  ReplicaWorld::checkInvariants();
  ReplicaWorld::checkInvariants(*target_.serving);
  ReplicaWorld::checkInvariants(*other_.serving);
}

std::string MovingWorld::run() {
  network_.after(random_.between(100, 1500), [this] { startMove(); });
  network_.after(random_.between(100, 1500), [this] { injectMoveFault(); });
  return ReplicaWorld::run();
}

void MovingWorld::later(Single& single, uint64_t ms, std::function<void()> event) {
  network_.after(ms, [&single, process = single.process, event = std::move(event)] {
    if (single.alive && single.process == process) event();
  });
}

// --- Trainers ---

void MovingWorld::train(size_t trainer) {
  if (finished()) return;
  const Follower& self = followers_[trainer];
  if (self.quiescedAt.value != 0) {
    askQuiesced(trainer);
  } else if (self.atTarget) {
    trainAtTarget(trainer);
  } else {
    trainAtSource(trainer);
  }
  network_.after(random_.between(8, 30), [this, trainer] { train(trainer); });
}

void MovingWorld::trainAtSource(size_t trainer) {
  Trainer& self = trainers_[trainer];
  for (size_t place = 0; place < places_.size(); place++) {
    network_.send(kTrainers, place, network_.delay(),
                  [this, place, trainer, step = self.step, open = self.open] {
                    ReplicaDaemon* daemon = places_[place].daemon;
                    if (daemon == nullptr) return;
                    daemon->run([=, this] {
                      const RecordedMove& move = daemon->serving().outgoing().move();
                      if (daemon->serving().outgoing().moved()) {
                        network_.send(place, kTrainers, network_.delay(),
                                      [this, trainer, id = move.move] { follow(trainer, id); });
                      } else if (open) {
                        daemon->push({trainer, step});
                      } else if (daemon->serving().outgoing().underWay()) {
                        network_.send(place, kTrainers, network_.delay(), [=, this, id = move.move] {
                          Follower& asked = followers_[trainer];
                          if (trainers_[trainer].open || asked.atTarget || asked.quiescedAt.value != 0)
                            return;
                          asked = {daemon->id(), id, false};
                          askQuiesced(trainer);
                        });
                      }
                    });
                  });
  }
  if (random_.oneIn(10)) pushToTarget(trainer);  // it knows all addresses
  if (self.open || (!mishaps_ && random_.oneIn(2)) || random_.oneIn(3)) return;
  self.step++;
  self.open = true;
}

void MovingWorld::askQuiesced(size_t trainer) {
  const Follower self = followers_[trainer];
  const size_t place = placeOf(self.quiescedAt);
  network_.send(kTrainers, place, network_.delay(), [this, trainer, self, place] {
    const auto answer = [this, trainer, self, place](bool resumes, uint64_t moved) {
      network_.send(place, kTrainers, network_.delay(), [this, trainer, self, resumes, moved] {
        Follower& now = followers_[trainer];
        if (now.quiescedAt != self.quiescedAt || now.move != self.move) return;
        if (moved != 0) return follow(trainer, moved);
        if (resumes) now.quiescedAt = {};
      });
    };
    ReplicaDaemon* daemon = living(self.quiescedAt);
    if (daemon == nullptr) return answer(true, 0);  // it reconnects to the next primary
    daemon->run([=, this] {
      const OutgoingMoveState& state = daemon->serving().outgoing();
      if (state.moved()) return answer(false, state.move().move);
      if (!state.underWay() || state.move().move != self.move) return answer(true, 0);
      daemon->quiesce(trainer, self.move);
    });
  });
}

void MovingWorld::follow(size_t trainer, uint64_t move) {
  followers_[trainer] = {.quiescedAt = {}, .move = move, .atTarget = true};
}

void MovingWorld::trainAtTarget(size_t trainer) {
  Trainer& self = trainers_[trainer];
  if (!self.open && (mishaps_ || random_.oneIn(2))) {
    self.step++;
    self.open = true;
  }
  pushToTarget(trainer);
}

void MovingWorld::pushToTarget(size_t trainer) {
  const Trainer& self = trainers_[trainer];
  network_.send(kTrainers, kTarget, network_.delay(),
                [this, trainer, push = ReplicaPush{trainer, self.step}, open = self.open,
                 move = followers_[trainer].atTarget ? followers_[trainer].move : 0] {
                  if (!target_.alive) return;
                  if (move != 0 && target_.serving->incoming().inPlace() == move)
                    static_cast<void>(commitTarget(move));
                  const bool admits = target_.serving->admits() || broken_ == Broken::admitsUndecided;
                  if (!admits || !target_.model || !open) return;
                  if (target_.model->find(push) == 0) target_.model->append(push);
                  target_.onDisk = target_.model;  // durability.type log
                  answered_[trainer] = std::max(answered_[trainer], push.step);
                  checkTarget("after an answer by the target");
                  network_.send(kTarget, kTrainers, network_.delay(), [this, push] {
                    Trainer& now = trainers_[push.trainer];
                    if (now.step == push.step) now.open = false;
                  });
                });
}

// --- The command ---

void MovingWorld::call(size_t place, std::function<Status()> call, std::function<void(const Status&)> then) {
  if (random_.oneIn(30)) {
    moves_.commandDied++;
    return dropCommand(command_.move);
  }
  auto open = std::make_shared<bool>(true);
  const uint64_t move = command_.move;
  const auto answer = [this, open, move, then = std::move(then)](const Status& status) {
    if (!std::exchange(*open, false) || !command_.alive || command_.move != move) return;
    then(status);
  };
  network_.send(kCommand, place, network_.delay(), [this, place, answer, call = std::move(call)] {
    network_.send(place, kCommand, network_.delay(), [answer, status = call()] { answer(status); });
  });
  network_.after(kCallMs, [answer] { answer(lost()); });
}

void MovingWorld::startMove() {
  if (finished()) return;
  network_.after(random_.between(300, 900), [this] { startMove(); });
  const uint64_t moved = engine_.movedBy(engine_.plan());
  if (command_.alive) return;
  if (moved != 0) {  // the command only repeats the commit
    network_.send(kCommand, kTarget, network_.delay(), [this, moved] {
      if (target_.alive) static_cast<void>(commitTarget(moved));
    });
    return;
  }
  command_ = {true, ++lastMove_, engine_.plan().primary};
  network_.after(2'500, [this, move = command_.move] {  // its timeout
    if (command_.alive && command_.move == move) dropCommand(move);
  });
  moves_.begun++;
  begin();
}

void MovingWorld::begin() {
  const uint64_t move = command_.move;
  const auto next = [this](std::function<void()> go) {
    return [this, go = std::move(go)](const Status& status) { status.ok() ? go() : giveUp(); };
  };
  const auto atLead = [this, move, id = command_.lead]() -> Status {
    ReplicaDaemon* daemon = living(id);
    if (daemon == nullptr || daemon->isStalled() || daemon->serving().term() == 0) return lost();
    return daemon->beginMove(move);
  };
  const auto atOther = [this, move]() -> Status {
    if (!other_.alive) return lost();
    PSD_RETURN_IF_ERROR(other_.serving->mayMove());
    return moveOther([this, move](auto& state) {
      state.begin({move, {{"target"}}}, command_.lead.value);
      return Status();
    });
  };
  const auto atTarget = [this, move]() -> Status {
    if (!target_.alive) return lost();
    PSD_RETURN_IF_ERROR(target_.serving->mayArrive());
    return arrive([this, move](auto& state) { return state.begin(move, target_.model.has_value()); });
  };
  const size_t leadPlace = placesOfIds_.contains(command_.lead) ? placeOf(command_.lead) : 0;
  call(kTarget, atTarget, next([=, this] {
         call(kOther, atOther,
              next([=, this] { call(leadPlace, atLead, next([this] { awaitQuiesced(); })); }));
       }));
}

void MovingWorld::awaitQuiesced() {
  ReplicaDaemon* daemon = lead();
  if (!command_.alive) return;
  const uint64_t move = command_.move;
  if (daemon == nullptr || daemon->serving().outgoing().move().move != move) return giveUp();
  settleOther(move);
  using Phase = OutgoingMoveState::Phase;
  const bool still = daemon->serving().outgoing().phase() == Phase::quiesced &&
                     other_.serving->outgoing().phase() == Phase::quiesced;
  if (still) return transfer();
  network_.after(20, [this, move] {
    if (command_.alive && command_.move == move) awaitQuiesced();
  });
}

void MovingWorld::transfer() {
  const uint64_t move = command_.move;
  const MoveLead from{command_.lead.value, {"the replica set"}};
  const auto place = [this, move, from, log = lead()->log()]() -> Status {
    if (!target_.alive) return lost();
    PSD_RETURN_IF_ERROR(arrive([&](auto& state) { return state.propose(move, from); }));
    PSD_RETURN_IF_ERROR(arrive([&](auto& state) {
      state.accept();
      target_.received = log;
      return state.place(move);
    }));
    this->place(move, from);
    return {};
  };
  call(kTarget, place, [this](const Status& status) {
    if (!status.ok()) giveUp();
  });
}

void MovingWorld::commit() {
  const uint64_t move = command_.move;
  const size_t place = placeOf(command_.lead);
  call(
      place,
      [this, move, id = command_.lead]() -> Status {
        ReplicaDaemon* daemon = living(id);
        if (daemon == nullptr || daemon->isStalled()) return lost();
        return daemon->commitMove(move);
      },
      [this](const Status& status) {
        // Else moveOver() continues: the answer comes with the outcome.
        if (status.ok()) return;
        if (status.error().code == ErrorCode::unavailable) return dropCommand(command_.move);
        giveUp();
      });
}

void MovingWorld::moveOver(ReplicaDaemon& daemon) {
  const OutgoingMoveState& state = daemon.serving().outgoing();
  if (!state.moved()) moves_.aborted++;
  if (!command_.alive || command_.lead != daemon.id()) return;
  const bool counts = state.moved() && state.move().move == command_.move;
  network_.send(daemon.place(), kCommand, network_.delay(), [this, counts, move = command_.move] {
    if (command_.alive && command_.move == move) finish(counts);
  });
}

void MovingWorld::finish(bool counts) {
  if (!counts) return giveUp();
  const uint64_t move = command_.move;
  call(
      kTarget, [this, move]() -> Status { return target_.alive ? commitTarget(move) : Status(lost()); },
      [this, move](const Status&) {
        call(
            kOther,
            [this, move]() -> Status {
              if (other_.alive) commitOther(move);
              return {};
            },
            [this](const Status&) { dropCommand(command_.move); });
      });
}

void MovingWorld::giveUp() {
  command_.givesUp = true;
  const uint64_t move = command_.move;
  call(
      kTarget,
      [this, move]() -> Status {
        if (!target_.alive) return lost();
        const auto next = arrive([move](auto& state) { return state.giveUp(move); });
        if (next.ok() && *next == IncomingMoveState::GiveUp::forget) forget();
        return {};
      },
      [this](const Status&) { dropCommand(command_.move); });
}

void MovingWorld::dropCommand(uint64_t move) {
  command_.alive = false;
  // After what it sent before.
  network_.after(random_.between(25, 300), [this, move, id = command_.lead] {
    if (ReplicaDaemon* daemon = living(id)) daemon->run([daemon, move] { daemon->abandonMove(move); });
    if (other_.alive) abandonOther(move);
    if (target_.alive) abandonTarget(move);
  });
}

// --- The target ---

void MovingWorld::place(uint64_t move, MoveLead lead) {
  later(target_, random_.between(0, 20), [this, move, lead] {
    target_.arrivingOnDisk = move;
    target_.leadOnDisk = lead;
    target_.onDisk.reset();  // what an earlier move left
    arrive([](auto& state) {
      state.read();
      return true;
    });
    later(target_, random_.between(0, 30), [this, move] {
      target_.model = std::exchange(target_.received, std::nullopt);
      target_.onDisk = target_.model;
      const bool asks = arrive([](auto& state) { return state.placed(); });
      if (asks) askLead(move, target_.process);
      network_.send(kTarget, kCommand, network_.delay(), [this, move] {
        if (command_.alive && command_.move == move && !command_.givesUp) commit();
      });
    });
  });
}

void MovingWorld::forget() {
  arrive([](auto& state) {
    state.forget();
    return true;
  });
  target_.model.reset();
  later(target_, random_.between(0, 20), [this] {
    target_.onDisk.reset();
    later(target_, random_.between(0, 20), [this] {
      target_.arrivingOnDisk = 0;
      arrive([](auto& state) {
        state.forgotten(true);
        return true;
      });
    });
  });
}

Status MovingWorld::commitTarget(uint64_t move) {
  const IncomingMoveState& state = target_.serving->incoming();
  if (state.outcome(move) == MoveOutcome::committed) return {};
  PSD_RETURN_IF_ERROR(state.mayCommit(move));
  if (state.unread()) {
    target_.model = target_.onDisk;
    arrive([](auto& arriving) {
      arriving.read();
      return true;
    });
  }
  arrive([](auto& arriving) {
    arriving.commit();
    return true;
  });
  later(target_, random_.between(0, 20), [this] {
    target_.arrivingOnDisk = 0;
    arrive([](auto& arriving) {
      arriving.committed(true);
      return true;
    });
    moves_.committed++;
    checkTarget("after the target's commit");
  });
  return {};
}

void MovingWorld::abandonTarget(uint64_t move) {
  using Abandon = IncomingMoveState::Abandon;
  const Abandon next = arrive([move](auto& state) { return state.abandon(move); });
  if (next != Abandon::ask) return;
  const bool idle = target_.serving->incoming().work() == IncomingMoveState::Work::none;
  if (broken_ == Broken::forgetsUnknown && idle) return forget();
  askLead(move, target_.process);
}

void MovingWorld::askLead(uint64_t move, uint64_t process) {
  later(target_, kPollMs, [this, move, process] {
    using Next = IncomingMoveState::Next;
    if (finished() || target_.process != process) return;
    const size_t place = random_.below(places_.size());
    const MoveOutcome outcome = network_.openBothWays(kTarget, place)
                                    ? outcomeAt(place, move, target_.serving->incoming().lead().daemon)
                                    : MoveOutcome::unknown;
    switch (target_.serving->incoming().answered(move, outcome)) {
      case Next::done: return;
      case Next::again: return askLead(move, process);
      case Next::commit: static_cast<void>(commitTarget(move)); break;
      case Next::forget: forget(); break;
    }
    moves_.asked++;
  });
}

MoveOutcome MovingWorld::outcomeAt(size_t place, uint64_t move, uint64_t leadProcess) {
  if (place == kTarget) {
    return target_.alive ? target_.serving->outcome(move, false) : MoveOutcome::unknown;
  }
  const ReplicaDaemon* daemon = places_[place].daemon;
  if (daemon == nullptr || daemon->isStalled()) return MoveOutcome::unknown;
  return daemon->serving().outcome(move, daemon->id().value == leadProcess);
}

// --- The other source ---

void MovingWorld::settleOther(uint64_t move) {
  const OutgoingMoveState& state = other_.serving->outgoing();
  const bool quiesces = state.phase() == OutgoingMoveState::Phase::quiescing && state.move().move == move;
  const bool all = std::all_of(followers_.begin(), followers_.end(),
                               [](const Follower& one) { return one.quiescedAt.value != 0; });
  if (!other_.alive || !quiesces || !all) return;
  moveOther([](auto& moving) {
    moving.settle();
    return true;
  });
  later(other_, random_.between(0, 20), [this, move] {
    static_cast<void>(moveOther([move](auto& moving) { return moving.quiesce(move); }));
  });
}

void MovingWorld::commitOther(uint64_t move) {
  const Status begun = moveOther([move](auto& state) { return state.commit(move); });
  if (begun.ok()) writeOther(move);
}

void MovingWorld::writeOther(uint64_t move) {
  later(other_, random_.between(0, 20), [this, move] {
    other_.movedOnDisk = move;
    moveOther([](auto& state) {
      state.written(OutgoingMoveState::Written::yes);
      return true;
    });
    if (engine_.movedBy(engine_.plan()) != move) violated("the other source has moved, and its lead has not");
  });
}

void MovingWorld::abandonOther(uint64_t move) {
  if (!moveOther([move](auto& state) { return state.abandon(move); })) return;
  if (other_.serving->outgoing().asks() == move) askAboutOther(move, other_.process);
}

void MovingWorld::askAboutOther(uint64_t move, uint64_t process) {
  later(other_, kPollMs, [this, move, process] {
    using Next = OutgoingMoveState::Next;
    if (finished() || other_.process != process) return;
    const size_t at = random_.below(places_.size() + 1);
    const size_t place = at == places_.size() ? kTarget : at;
    const MoveOutcome outcome = network_.openBothWays(kOther, place)
                                    ? outcomeAt(place, move, other_.serving->outgoing().lead())
                                    : MoveOutcome::unknown;
    const Next next = moveOther([&](auto& state) { return state.answered(move, outcome); });
    if (next == Next::again) return askAboutOther(move, process);
    moves_.asked++;
    if (next == Next::commit) writeOther(move);
  });
}

// --- Faults ---

void MovingWorld::injectMoveFault() {
  if (!mishaps_ || finished()) return;
  network_.after(random_.between(50, 900), [this] { injectMoveFault(); });
  switch (random_.below(5)) {
    case 0: return restartTarget();
    case 1: return restartOther();
    case 2:
      if (command_.alive) {
        moves_.commandDied++;
        dropCommand(command_.move);
      }
      return;
    case 3:
      // A loss of the document followed by a crash needs an operator.
      if (network_.now() - lostAt_ < std::chrono::seconds(1)) return;
      if (ReplicaDaemon* daemon = lead(); daemon != nullptr && daemon->serving().outgoing().underWay()) {
        moves_.takeovers++;
        crash(daemon->place());
      }
      return;
    default: {
      const size_t one = random_.oneIn(2) ? kTarget : kOther;
      const size_t place = random_.oneIn(2) ? kCommand : random_.below(places_.size());
      network_.cut(one, place, random_.between(20, 600));
      network_.cut(place, one, random_.between(20, 600));
    }
  }
}

void MovingWorld::restart(Single& single) {
  moves_.restarts++;
  single.alive = false;
  single.process++;
  single.serving = std::make_unique<ServingState>();
  if (single.movedOnDisk != 0) {
    single.serving->changeOutgoing([&](auto& state) { state.adopt({single.movedOnDisk, {{"target"}}}); });
  }
}

void MovingWorld::restartTarget() {
  if (!target_.alive) return;
  restart(target_);
  target_.model.reset();
  target_.received.reset();
  network_.after(random_.between(5, 400), [this] {
    target_.alive = true;
    if (target_.arrivingOnDisk == 0) {
      target_.model = target_.onDisk;
      return;
    }
    arrive([this](auto& state) {
      state.found(target_.arrivingOnDisk, target_.leadOnDisk);
      return true;
    });
    askLead(target_.arrivingOnDisk, target_.process);
  });
}

void MovingWorld::restartOther() {
  if (!other_.alive) return;
  restart(other_);
  network_.after(random_.between(5, 400), [this] { other_.alive = true; });
}

// --- Invariants ---

void MovingWorld::answered(ReplicaDaemon& daemon, uint64_t term, const ReplicaPush& push) {
  const bool repeated = push.step <= answered_[push.trainer];
  if (target_.serving->incoming().arrived() && !repeated) violated("a source answers a push after the move");
  ReplicaWorld::answered(daemon, term, push);
}

void MovingWorld::checkTarget(const std::string& when) {
  if (!target_.model) return violated(when + " it has no model");
  if (target_.model->twice()) violated(when + " it has a push twice");
  if (!target_.model->holds(answered_)) violated(when + " it lacks an answered push");
  if (engine_.movedBy(engine_.plan()) == 0) violated(when + " the cluster document records no move");
}

std::string MovingWorld::unfinished() const {
  const IncomingMoveState& target = target_.serving->incoming();
  const OutgoingMoveState& other = other_.serving->outgoing();
  std::string text =
      "; the document records move " + std::to_string(engine_.movedBy(engine_.plan())) +
      "; the target receives " + std::to_string(target.receiving()) + ", has " +
      std::to_string(target.inPlace()) + " in place and " + std::to_string(target.committedMove()) +
      " committed" + (target.work() == IncomingMoveState::Work::none ? "" : ", and works") +
      "; the other source is in phase " + std::to_string(static_cast<int>(other.phase())) + " of " +
      std::to_string(other.move().move) + " and asks for " + std::to_string(other.asks());
  for (const Place& place : places_) {
    if (place.daemon == nullptr) continue;
    const OutgoingMoveState& state = place.daemon->serving().outgoing();
    text += "; " + std::to_string(place.daemon->id().value) + " is in phase " +
            std::to_string(static_cast<int>(state.phase())) + " of " + std::to_string(state.move().move);
  }
  for (const Follower& one : followers_) {
    text += one.atTarget ? "; a trainer has followed"
                         : "; a trainer quiesces at " + std::to_string(one.quiescedAt.value);
  }
  return text;
}

bool MovingWorld::whole() const {
  // One that was restarted before its move was recorded serves again, and its lead redirects trainers.
  const OutgoingMoveState& other = other_.serving->outgoing();
  const bool follow =
      std::all_of(followers_.begin(), followers_.end(), [](const Follower& one) { return one.atTarget; });
  const bool answered =
      std::none_of(trainers_.begin(), trainers_.end(), [](const Trainer& one) { return one.open; });
  return follow && answered && target_.alive && target_.serving->admits() && target_.model &&
         (other.moved() || (other.phase() == OutgoingMoveState::Phase::none && other.asks() == 0));
}

}  // namespace psd::testing
