// The side of Control that knows who is in: joining, coming back, leases, departures.

#include <chrono>

#include <spdlog/spdlog.h>

#include "server/config/round_checks.h"
#include "server/control/control.h"
#include "server/metrics/steady_clock.h"
#include "server/push/push_server.h"

namespace psd {

Result<Joined> Control::admit(Candidate candidate, const std::vector<HeldSamples>& held,
                              const std::shared_ptr<EventLoop>& loop) {
  if (end_.requested()) return end_.error();
  if (roster_.needsRoom(candidate)) endOneDisconnected();
  PSD_RETURN_IF_ERROR(roster_.place(candidate));
  if (candidate.worldSize > config_->limits.connections) {  // each rank that ever was in is remembered
    return Error{ErrorCode::invalidArgument, "a world size of " + std::to_string(candidate.worldSize) +
                                                 ": limits.connections allows " +
                                                 std::to_string(config_->limits.connections)};
  }
  PSD_RETURN_IF_ERROR(checkRounds(*config_, backends_, candidate.worldSize));
  PSD_RETURN_IF_ERROR(roster_.mayJoin(candidate));
  if (models_->superseded({candidate.rank, candidate.incarnation})) {
    return Error{ErrorCode::rankTaken,
                 "rank " + std::to_string(candidate.rank.value) + " was taken over by another process"};
  }
  if (auto holder = roster_.holderOf(candidate.rank)) {
    const Candidate& other = roster_.sessions().at(*holder);
    if (candidate.incarnation != 0 && other.incarnation == candidate.incarnation) {
      return resume(*holder, candidate);
    }
    if (!candidate.returns && !leases_.connected(*holder)) {
      forget(*holder, Departure::lost, "a new trainer takes its rank");
    }
  }
  PSD_ASSIGN_OR_RETURN(SessionId id, roster_.join(candidate));
  Session& session = sessions_[id];
  session.candidate = candidate;
  const bool goesOn = goesOnWith(candidate);
  session.life = lifeOf(candidate, loop);
  leases_.grant(id);
  const TrainerRef trainer{id, candidate.rank, candidate.incarnation};
  session.life.pushes->beginSession(trainer);
  if (goesOn) {
    samples_->rejoin(id, session.life.id, candidate);
  } else {
    samples_->join(id, session.life.id, candidate, held, *session.life.pushes);
  }
  models_->join(trainer);
  counters_.trainersJoined.add();
  keepFinishedRanks();  // the rank may have been among the departed
  Joined joined = describe(id, models_->start().join(id));
  spdlog::info("rank {} of {} joined (process {} on {}){}", candidate.rank.value, candidate.worldSize,
               candidate.pid, candidate.host,
               joined.role == ModelStart::Role::bringValues ? " and brings the initial values" : "");
  return joined;
}

Result<Joined> Control::resume(SessionId id, const Candidate& candidate) {
  Session& session = sessions_.at(id);
  session.candidate.codec = candidate.codec;  // a connection's own affair
  session.candidate.pullCodec = candidate.pullCodec;
  session.epoch->attachment++;
  leases_.grant(id);
  counters_.trainersReturned.add();
  spdlog::info("rank {} (process {} on {}) is back after step {}", session.candidate.rank.value,
               session.candidate.pid, session.candidate.host, session.life.counters->step.value());
  Joined joined = describe(id, models_->start().roleOf(id));
  joined.resumed = true;
  return joined;
}

Result<Joined> Control::attach(const AttachRequest& request) {
  if (end_.requested()) return end_.error();
  const auto holder = roster_.holderOf(request.rank);
  const Session* session = holder ? &sessions_.at(*holder) : nullptr;
  if (!session || request.incarnation == 0 || session->candidate.incarnation != request.incarnation ||
      session->epoch->attachment != request.attachment) {
    return Error{ErrorCode::sessionEnded, "rank " + std::to_string(request.rank.value) +
                                              " has not joined as the one that asks for another connection"};
  }
  Joined joined = describe(*holder, models_->start().roleOf(*holder));
  joined.further = true;
  return joined;
}

Joined Control::describe(SessionId id, ModelStart::Role role) {
  const Session& session = sessions_.at(id);
  session.life.counters->heard();
  const TrainerRef trainer{id, session.candidate.rank, session.candidate.incarnation};
  return {.trainer = trainer,
          .model = models_->model(),
          .role = role,
          .counters = session.life.counters,
          .epoch = session.epoch,
          .attachment = session.epoch->attachment,
          .pushes = session.life.pushes,
          .worldSize = session.candidate.worldSize,
          .daemonId = daemonId_,
          .codec = session.candidate.codec,
          .pullCodec = session.candidate.pullCodec};
}

bool Control::goesOnWith(const Candidate& candidate) const {
  const auto life = lives_.find(candidate.rank);
  return candidate.incarnation != 0 && life != lives_.end() &&
         life->second.incarnation == candidate.incarnation;
}

Control::Life Control::lifeOf(const Candidate& candidate, const std::shared_ptr<EventLoop>& loop) {
  const bool goesOn = goesOnWith(candidate);
  Life& life = lives_[candidate.rank];
  if (!goesOn) {
    life.incarnation = candidate.incarnation;
    life.id = LifeId{++lastLife_};
    life.counters = std::make_shared<SessionCounters>();
    life.pushes = PushServer::make(life.id, loop, models_->model(), life.counters,
                                   models_->savedOf({candidate.rank, candidate.incarnation}));
  }
  return life;
}

void Control::disconnected(SessionId session, uint32_t attachment) {
  auto entry = sessions_.find(session);
  if (entry == sessions_.end() || entry->second.epoch->attachment != attachment) return;
  leases_.disconnected(session);
  if (end_.restarting()) {  // the trainer stays in, so that no round goes on without it
    const Candidate& trainer = entry->second.candidate;
    spdlog::info("rank {} (process {} on {}) has hung up after {} steps, to come back to the next daemon",
                 trainer.rank.value, trainer.pid, trainer.host, entry->second.life.counters->step.value());
    return;
  }
  if (end_.requested()) return depart(session, Departure::lost, "its connection closed");
  if (config_->membership.graceMs != 0) {
    const Candidate& trainer = entry->second.candidate;
    spdlog::info("rank {} (process {} on {}) is no longer connected; it has {} ms to come back",
                 trainer.rank.value, trainer.pid, trainer.host, config_->membership.graceMs);
  }
  endExpired();
}

kj::Promise<void> Control::watchLeases(kj::Timer& timer) {
  return timer.afterDelay(leases_.interval().count() * kj::MILLISECONDS).then([this, &timer] {
    lookAtLeases();
    return watchLeases(timer);
  });
}

void Control::lookAtLeases() {
  leases_.advance(std::chrono::milliseconds(steadyMs()));
  for (auto& [id, session] : sessions_) {
    const uint64_t heardMs = session.life.counters->lastSeenMs.value();
    if (heardMs != session.heardMs && leases_.connected(id)) leases_.grant(id);
    session.heardMs = heardMs;
  }
  endExpired();
}

void Control::endOneDisconnected() {
  for (const auto& [session, entry] : sessions_) {
    if (leases_.connected(session)) continue;
    forget(session, Departure::lost, "a new trainer takes its rank");
    return;
  }
}

void Control::endDisconnected() {
  std::vector<SessionId> gone;
  for (const auto& [session, entry] : sessions_) {
    if (!leases_.connected(session)) gone.push_back(session);
  }
  for (SessionId session : gone) depart(session, Departure::lost, "its connection closed");
}

void Control::endExpired() {
  if (end_.restarting()) return;
  for (SessionId session : leases_.expired()) {
    if (session == kPriorRunTrainers) {
      giveUpPriorRunTrainers();
      continue;
    }
    depart(session, Departure::lost,
           leases_.connected(session)
               ? "not heard of for membership.lease_ms (" + std::to_string(config_->membership.leaseMs) + ")"
               : "its connection closed");
  }
}

void Control::giveUpPriorRunTrainers() {
  leases_.release(kPriorRunTrainers);
  samples_->giveUpPriorRunTrainers();
  roster_.keep({});
  ranksPair_.fulfiller->fulfill();
}

void Control::depart(SessionId session, Departure how, const std::string& why) {
  if (sessions_.count(session) == 0) return;
  forget(session, how, why);
  dropUnclaimed();
  // Who comes now begins a run of its own, unless it is one that the run of before still waits for.
  if (sessions_.empty() && !config_->exitWhenDone) samples_->closeFinished();
  keepFinishedRanks();
}

void Control::dropUnclaimed() {
  // A model that never got its values binds nobody.
  if (!sessions_.empty() || models_->start().complete() || config_->model) return;
  models_->drop();
  lives_.clear();
}

kj::Promise<void> Control::leave(SessionId session) {
  depart(session, Departure::left, "left");
  return whenFinishedRanksKept();
}

void Control::restoreFinishedRanks(const std::optional<Departed>& before) {
  if (before && roster_.recall(before->worldSize, before->ranks)) {
    keptFinishedRanks_ = before->ranks;
    if (before->ranks.empty()) return;
    spdlog::info("{} of {} ranks have come and gone before", before->ranks.size(), before->worldSize);
    return endIfDone();
  }
  // What another run left is not to be taken for this one's.
  if (Status forgotten = durability_->forgetFinishedRanks(); !forgotten.ok()) {
    spdlog::error("something old stays: {}", forgotten.message());
  }
}

void Control::keepFinishedRanks() {
  if (!config_->exitWhenDone) return;
  Departed departed{roster_.worldSize(), roster_.departed()};
  if (savedLast_ || !config_->durability.enabled() || departed.ranks == keptFinishedRanks_)
    return endIfDone();
  keptFinishedRanks_ = departed.ranks;
  finishedRanksKept_ =
      finishedRanksKept_
          .addBranch()  // one after the other: the newest stays
          .then([this, departed] {
            return background_.run<Status>(
                [this, departed] { return durability_->keepFinishedRanks(departed); });
          })
          .catch_([](kj::Exception&& exception) {  // no thread
            return Status(ErrorCode::internal, exception.getDescription().cStr());
          })
          .then([this, departed](Status kept) {
            if (!kept.ok()) {
              spdlog::error("a daemon after this one would wait for trainers that are done: {}",
                            kept.message());
            }
            // Who leaves is told so before everybody is told of the end.
            if (departed.ranks == keptFinishedRanks_) endIfDone();
          })
          .fork();
}

void Control::endIfDone() {
  if (end_.requested() || !roster_.everyoneDone()) return;
  const bool fixed = roster_.worldSizeMin() == roster_.worldSize();
  const uint64_t lost = roster_.lostCount();
  requestStop("all " + (fixed ? std::to_string(roster_.worldSize()) + " " : "") + "trainers are " +
              (lost == 0 ? "done" : "gone; lost on the way: " + std::to_string(lost)));
}

void Control::forget(SessionId session, Departure how, const std::string& why) {
  auto entry = sessions_.find(session);
  entry->second.epoch->attachment = SessionEpoch::kEnded;
  const std::shared_ptr<PushServer> pushes = entry->second.life.pushes;
  pushes->endSession();
  leases_.release(session);
  const Candidate gone = entry->second.candidate;
  uint64_t steps = entry->second.life.counters->step.value();
  if (how == Departure::left) {
    lives_.erase(gone.rank);  // a process that left does not come back
    spdlog::info("rank {} left after {} steps", gone.rank.value, steps);
  } else {
    spdlog::warn("rank {} (process {} on {}) is lost after {} steps: {}", gone.rank.value, gone.pid,
                 gone.host, steps, why);
  }
  sessions_.erase(entry);
  roster_.depart(session, end_.requested() && how == Departure::lost ? Departure::sentAway : how);
  models_->leave(session);
  samples_->leave(session, pushes);
  if (auto next = models_->start().depart(session)) {
    spdlog::warn("the trainer that brought the initial values is gone; rank {} brings them",
                 sessions_[*next].candidate.rank.value);
    answerWaiter(sessions_[*next], ModelStart::Role::bringValues);
  }
}

}  // namespace psd
