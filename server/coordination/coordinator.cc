#include "server/coordination/coordinator.h"

#include <algorithm>

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include "common/log/log_line.h"
#include "common/os/random_id.h"
#include "common/text/quantity.h"
#include "common/text/text.h"
#include "common/types/bridge.h"
#include "common/types/unix_time.h"
#include "server/coordination/trainer_text.h"

namespace psd {
namespace {

constexpr size_t kRemovedMax = 1024;
constexpr size_t kRefusalBytesMax = 1000;  // enough for two tensors in full

/// The lease of all trainers that were joined when the previous daemon died. Real sessions are numbered from
/// 1.
constexpr SessionId kPriorRunTrainers{0};

}  // namespace

Coordinator::Coordinator(const RunTerms& terms, ServingState& serving, Hosting& hosting,
                         DaemonMetrics& metrics)
    : terms_(terms),
      serving_(serving),
      hosting_(hosting),
      metrics_(metrics),
      roster_(terms.worldSize, terms.worldSizeMin),
      leases_({terms.lease, terms.grace}),
      samples_(hosting),
      pause_(serving, hosting, [this] { return trainersIn(); }),
      finished_(hosting),
      processes_(hosting),
      daemonId_(drawId()),
      ranksGivenUp_(ranksPair_.promise.fork()) {}

bool Coordinator::begin(const PriorRun& prior) {
  continuesRun_ = prior.continuesRun;
  if (prior.hasValues) arrival_.skip();
  const bool hasPlan = samples_.recall(terms_.exitWhenDone);
  const std::optional<Departed>& departed = prior.departed;
  const bool continuesRun = departed && roster_.recall(departed->worldSize, departed->ranks);
  if (continuesRun && !departed->ranks.empty()) {
    finished_.recall(departed->ranks);
    spdlog::info("{} of {} ranks have departed already", departed->ranks.size(), departed->worldSize);
    endIfDone();
  }
  std::set<Rank> ranks = prior.ranks;
  for (const Rank gone : roster_.departed()) ranks.erase(gone);
  if (hasPlan || !ranks.empty()) {
    leases_.grant(kPriorRunTrainers);
    leases_.disconnected(kPriorRunTrainers);
  }
  roster_.keep(std::move(ranks));
  return continuesRun;
}

// --- Joining -----------------------------------------------------------------------------------------

kj::Promise<Result<SessionGrant>> Coordinator::join(Candidate candidate, std::vector<HeldSamples> held,
                                                    ModelSpec model) {
  if (end_.requested()) return Result<SessionGrant>(end_.error());
  if (const uint64_t move = std::exchange(candidate.move, 0); move != 0 && commitArrival_) {
    return commitArrival_(move).then(
        [this, candidate = std::move(candidate), held = std::move(held), model = std::move(model)]() mutable {
          return join(std::move(candidate), std::move(held), std::move(model));
        });
  }
  if (const auto why = serving_.rejection(ServingState::Peer::returningTrainer)) {
    return Result<SessionGrant>(*why);
  }
  if (model.empty()) {
    return Result<SessionGrant>(ErrorCode::invalidArgument,
                                "a trainer's model has at least one tensor or table");
  }
  candidate.returns = candidate.lastDaemon == daemonId_;
  if (!hosting_.hasModel() && !roster_.canRejoinRank(candidate)) {  // create a model only if it may join
    Candidate asked = candidate;
    Status fits = roster_.place(asked);
    if (fits.ok()) fits = roster_.mayJoin(asked);
    if (!fits.ok()) {
      noteRefused(candidate, fits.error());
      return Result<SessionGrant>(fits.error());
    }
  }
  return hosting_.provideModel(model, candidate.optimizer)
      .then([this, candidate = std::move(candidate), held = std::move(held),
             model = std::move(model)](Status status) mutable -> kj::Promise<Result<SessionGrant>> {
        // Meanwhile the model may have been dropped, with the last joined trainer.
        if (status.ok() && !hosting_.hosts(model)) {
          return join(std::move(candidate), std::move(held), std::move(model));
        }
        if (status.ok() && !end_.requested() && roster_.canRejoinRank(candidate)) {
          return ranksGivenUp_.addBranch().then([this, candidate = std::move(candidate),
                                                 held = std::move(held), model = std::move(model)]() mutable {
            return join(std::move(candidate), std::move(held), std::move(model));
          });
        }
        Result<SessionGrant> admitted =
            status.ok() ? admit(candidate, held) : Result<SessionGrant>(status.error());
        if (!admitted.ok()) {
          noteRefused(candidate, admitted.error());
          dropUninitialized();
          return admitted;
        }
        return afterDepartedSaved(*admitted);
      });
}

kj::Promise<Result<SessionGrant>> Coordinator::afterDepartedSaved(SessionGrant grant) {
  const auto told = std::make_shared<bool>(false);
  auto hungUp = kj::defer([this, told, session = grant.trainer.session, attachment = grant.attachment] {
    if (!*told) disconnected(session, attachment);
  });
  return whenDepartedRanksSaved()
      .then([told, grant = std::move(grant)]() mutable {
        *told = true;
        return Result<SessionGrant>(std::move(grant));
      })
      .attach(kj::mv(hungUp));
}

void Coordinator::note(spdlog::level::level_enum level, const LogFields& fields, const std::string& line) {
  logLine(level, fields, "{}", line);
  events_.add(fields.event, line, fields.by);
}

void Coordinator::noteRefused(const Candidate& candidate, const Error& why) {
  std::string line = fmt::format("{} (process {} on {}): {}",
                                 candidate.anyRank ? "a trainer of any rank" : rankText(candidate.rank),
                                 candidate.pid, candidate.host, oneLine(why.message, kRefusalBytesMax));
  if (why.code == ErrorCode::forbidden) line += "; asked by " + candidate.asker;
  LogFields fields = fieldsOf("refused", candidate);
  fields.peer = candidate.host;
  fields.limited = true;
  logLine(spdlog::level::warn, fields, "refused {}", line);
  events_.add("refused", line, candidate.asker);
}

Error Coordinator::rejectForeignAttach(const AttachRequest& request) {
  const Error error{ErrorCode::forbidden,
                    fmt::format("the session of rank {} belongs to another caller; only the token, "
                                "certificate or user that began a session may attach to it",
                                request.rank.value)};
  const std::string line = fmt::format("another connection of rank {}: {}; asked by {}", request.rank.value,
                                       error.message, request.asker);
  logLine(spdlog::level::warn,
          {.event = "refused", .rank = request.rank.value, .peer = request.asker, .limited = true},
          "refused {}", line);
  events_.add("refused", line, request.asker);
  return error;
}

Result<SessionGrant> Coordinator::admit(Candidate candidate, const std::vector<HeldSamples>& held) {
  if (const std::string* by = removerOf(candidate)) {
    return Error{
        ErrorCode::rankTaken,
        fmt::format("this trainer was removed by an operator ({}); a new process may take its rank", *by)};
  }
  const auto itself = roster_.holderOf(candidate.rank);
  const bool resumes = itself && candidate.incarnation != 0 &&
                       roster_.sessions().at(*itself).incarnation == candidate.incarnation &&
                       mayResume(roster_.sessions().at(*itself).owner, candidate.owner);
  using Peer = ServingState::Peer;
  if (const auto why = serving_.rejection(resumes ? Peer::returningTrainer : Peer::trainer)) return *why;
  if (roster_.needsRoom(candidate)) endOneDisconnected();
  PSD_RETURN_IF_ERROR(roster_.place(candidate));
  if (candidate.worldSize > terms_.ranksMax) {
    return Error{ErrorCode::invalidArgument, fmt::format("a world size of {}: limits.connections allows {}",
                                                         candidate.worldSize, terms_.ranksMax)};
  }
  PSD_RETURN_IF_ERROR(hosting_.mayTrain({candidate.rank, candidate.incarnation}, candidate.worldSize));
  PSD_RETURN_IF_ERROR(roster_.mayJoin(candidate));
  if (auto holder = roster_.holderOf(candidate.rank)) {
    const Candidate& other = roster_.sessions().at(*holder);
    if (candidate.incarnation != 0 && other.incarnation == candidate.incarnation) {
      return resume(*holder, candidate);
    }
    if (!candidate.returns && !leases_.connected(*holder)) {
      forget(*holder, Departure::lost, "a new trainer takes its rank");
    }
  }
  return enter(candidate, held);
}

Result<SessionGrant> Coordinator::enter(const Candidate& candidate, const std::vector<HeldSamples>& held) {
  PSD_ASSIGN_OR_RETURN(SessionId id, roster_.join(candidate));
  Session& session = sessions_[id];
  session.candidate = candidate;
  const TrainerProcess process{candidate.rank, candidate.incarnation};
  const bool continuesRun = processes_.knows(process);
  session.process = processes_.enter(process);
  leases_.grant(id);
  const TrainerRef trainer = candidate.in(id);
  hosting_.sessionBegan(session.process.id, trainer);
  if (candidate.bridges) {
    // A bridge has no samples, is unknown to policies, and no run waits for it.
  } else if (continuesRun) {
    samples_.rejoin(id, session.process.id, candidate);
  } else {
    samples_.join(id, session.process.id, candidate, held);
  }
  hosting_.includeInRounds(trainer);
  metrics_.trainersJoined.add();
  saveDepartedRanks();  // the rank may have been among the departed ones
  SessionGrant grant = describe(id, arrival_.join(id));
  const std::string of = candidate.bridges ? "" : fmt::format(" of {}", candidate.worldSize);
  const std::string line = fmt::format("{}{} joined (process {} on {}){}", rankText(candidate.rank), of,
                                       candidate.pid, candidate.host, initializerText(grant.role, candidate));
  LogFields fields = fieldsOf("joined", candidate);
  fields.by = candidate.asker;
  note(spdlog::level::info, fields, line);
  return grant;
}

SessionGrant Coordinator::resume(SessionId id, const Candidate& candidate) {
  Session& session = sessions_.at(id);
  roster_.setOwner(id, candidate.owner);
  session.candidate.codec = candidate.codec;  // codecs may differ per connection
  session.candidate.pullCodec = candidate.pullCodec;
  session.candidate.ownCodec = candidate.ownCodec;
  session.candidate.ownPullCodec = candidate.ownPullCodec;
  session.fence->attachment++;
  pause_.resumeTrainer(id);
  leases_.grant(id);
  metrics_.trainersReturned.add();
  const uint64_t step = session.process.counters->step.value();
  LogFields fields = fieldsOf("returned", session.candidate, step);
  fields.by = candidate.asker;
  note(spdlog::level::info, fields, fmt::format("{} is back after step {}", named(session.candidate), step));
  SessionGrant grant = describe(id, arrival_.roleOf(id));
  grant.resumed = true;
  return grant;
}

Result<SessionGrant> Coordinator::attach(const AttachRequest& request) {
  if (end_.requested()) return end_.error();
  const auto holder = roster_.holderOf(request.rank);
  const Session* session = holder ? &sessions_.at(*holder) : nullptr;
  if (!session || request.incarnation == 0 || session->candidate.incarnation != request.incarnation ||
      session->fence->attachment != request.attachment) {
    return Error{ErrorCode::sessionEnded,
                 fmt::format("the process that requests another connection for rank {} has not joined",
                             request.rank.value)};
  }
  if (!mayResume(roster_.sessions().at(*holder).owner, request.owner)) return rejectForeignAttach(request);
  SessionGrant grant = describe(*holder, arrival_.roleOf(*holder));
  grant.further = true;
  return grant;
}

SessionGrant Coordinator::describe(SessionId id, ModelInitialization::Role role) const {
  const Session& session = sessions_.at(id);
  session.process.counters->touch();
  return {.trainer = session.candidate.in(id),
          .process = session.process.id,
          .role = role,
          .counters = session.process.counters,
          .fence = session.fence,
          .attachment = session.fence->attachment,
          .worldSize = session.candidate.worldSize,
          .daemonId = daemonId_,
          .primaryTerm = serving_.term(),
          .continuesRun = continuesRun_,
          .codec = session.candidate.codec,
          .pullCodec = session.candidate.pullCodec};
}

// --- Initialization ----------------------------------------------------------------------------------

kj::Promise<Result<ModelInitialization::Role>> Coordinator::awaitModel(SessionId session) {
  if (end_.requested()) return Result<ModelInitialization::Role>(end_.error());
  if (!arrival_.ready() && sessions_.count(session) == 0) {
    return Result<ModelInitialization::Role>(ErrorCode::notReady, "the session has ended");
  }
  return arrival_.await(session);
}

kj::Promise<Status> Coordinator::initialized(SessionId session, Step step) {
  if (!arrival_.complete(session)) {
    return Status(ErrorCode::invalidArgument, "this trainer is not the initializer");
  }
  return hosting_.saveValues().then(
      [this, step, trainer = sessions_.at(session).candidate] {
        arrival_.open();
        logInitialized(trainer, step);
        return Status();
      },
      [this](kj::Exception&& exception) -> Status {  // no thread could be started
        requestStop(fmt::format("nothing can be saved: {}", exception.getDescription().cStr()));
        return end_.error();
      });
}

void Coordinator::restored(SessionId session, Step step) {
  const auto entry = sessions_.find(session);
  if (entry == sessions_.end()) return;
  const Candidate& trainer = entry->second.candidate;
  note(spdlog::level::info, fieldsOf("serving", trainer, step.value),
       fmt::format("the model has the values and the optimizer's state after step {} that {} restored",
                   step.value, named(trainer)));
}

void Coordinator::logInitialized(const Candidate& trainer, Step step) {
  if (step.value == 0) {
    return note(spdlog::level::info, fieldsOf("serving", trainer), "the model has its initial values");
  }
  const std::string line = fmt::format(
      "the model has the parameters that {} had at its step {}; updates that it had not pulled are missing, "
      "and the optimizer's state is reset",
      named(trainer), step.value);
  note(spdlog::level::warn, fieldsOf("serving", trainer, step.value), line);
}

void Coordinator::dropUninitialized() {
  // A model that was never initialized constrains no trainer.
  if (!sessions_.empty() || arrival_.complete()) return;
  if (hosting_.dropUninitialized()) processes_.endAll();
}

// --- Lost trainers -----------------------------------------------------------------------------------

void Coordinator::disconnected(SessionId session, uint32_t attachment) {
  auto entry = sessions_.find(session);
  if (entry == sessions_.end() || entry->second.fence->attachment != attachment) return;
  leases_.disconnected(session);
  const Candidate& trainer = entry->second.candidate;
  if (serving_.continuesElsewhere()) {  // the trainer stays joined, so that no round closes without it
    const uint64_t steps = entry->second.process.counters->step.value();
    logLine(spdlog::level::info, fieldsOf("disconnected", trainer, steps),
            "{} disconnected after {} steps, to reconnect to the next daemon", named(trainer), steps);
    return;
  }
  if (end_.requested()) return depart(session, Departure::lost, "its connection closed");
  if (terms_.grace.count() != 0) {
    const std::string line =
        fmt::format("{} is disconnected; it has {} to reconnect", named(trainer), durationText(terms_.grace));
    note(spdlog::level::info, fieldsOf("disconnected", trainer), line);
  }
  endExpired();
}

std::chrono::milliseconds Coordinator::expireLeases(std::chrono::milliseconds now) {
  leases_.advance(now);
  for (auto& [id, session] : sessions_) {
    const uint64_t heardMs = session.process.counters->lastSeenMs.value();
    if (heardMs != session.heardMs && leases_.connected(id)) leases_.grant(id);
    session.heardMs = heardMs;
  }
  endExpired();
  return leases_.interval();
}

void Coordinator::endOneDisconnected() {
  for (const auto& [session, entry] : sessions_) {
    if (leases_.connected(session) || entry.candidate.bridges) continue;
    forget(session, Departure::lost, "a new trainer takes its rank");
    return;
  }
}

void Coordinator::endDisconnected() {
  std::vector<SessionId> gone;
  for (const auto& [session, entry] : sessions_) {
    if (!leases_.connected(session)) gone.push_back(session);
  }
  for (SessionId session : gone) depart(session, Departure::lost, "its connection closed");
}

void Coordinator::endExpired() {
  if (serving_.continuesElsewhere()) return;
  for (SessionId session : leases_.expired()) {
    if (session == kPriorRunTrainers) {
      dropPriorRunTrainers();
      continue;
    }
    depart(session, Departure::lost,
           leases_.connected(session)
               ? fmt::format("no heartbeat for membership.lease_ms ({})", terms_.lease.count())
               : "its connection closed");
  }
}

void Coordinator::dropPriorRunTrainers() {
  leases_.release(kPriorRunTrainers);
  samples_.dropPriorRunTrainers();
  roster_.keep({});
  ranksPair_.fulfiller->fulfill();
}

// --- Departed trainers -------------------------------------------------------------------------------

kj::Promise<void> Coordinator::leave(SessionId session) {
  depart(session, Departure::left, "left");
  return whenDepartedRanksSaved();
}

void Coordinator::depart(SessionId session, Departure how, const std::string& why, const std::string& by) {
  if (sessions_.count(session) == 0) return;
  forget(session, how, why, by);
  dropUninitialized();
  // The next trainer starts a new run, unless this run still waits for more trainers.
  if (roster_.trainers() == 0 && !terms_.exitWhenDone) samples_.closeFinished();
  saveDepartedRanks();
}

const std::string* Coordinator::removerOf(const Candidate& candidate) const {
  if (candidate.incarnation == 0) return nullptr;
  // A process that resumes another one's state, like a bridge, has the same incarnation.
  const auto found = std::find_if(removed_.begin(), removed_.end(), [&](const Removed& gone) {
    return gone.trainer.incarnation == candidate.incarnation && gone.trainer.pid == candidate.pid &&
           gone.trainer.host == candidate.host;
  });
  return found == removed_.end() ? nullptr : &found->by;
}

Result<std::string> Coordinator::remove(Rank rank, const std::string& by) {
  const auto holder = roster_.holderOf(rank);
  if (!holder) {
    return Error{ErrorCode::invalidArgument, fmt::format("no trainer has rank {}", rank.value)};
  }
  const Candidate trainer = sessions_.at(*holder).candidate;
  if (removed_.size() == kRemovedMax) removed_.pop_front();
  removed_.push_back({trainer, by});
  depart(*holder, Departure::lost, fmt::format("removed by an operator ({})", by), by);
  return named(trainer);
}

Status Coordinator::report(SessionId session, uint64_t step, std::span<const NamedValue> values) {
  const auto entry = sessions_.find(session);
  if (entry == sessions_.end()) return {ErrorCode::sessionEnded, "the session has ended"};
  reports_.add(entry->second.candidate.rank, step, values, unixTimeNow());
  return {};
}

void Coordinator::forget(SessionId session, Departure how, const std::string& why, const std::string& by) {
  auto entry = sessions_.find(session);
  entry->second.fence->end(why);
  const TrainerProcesses::Process process = entry->second.process;
  const Candidate gone = entry->second.candidate;
  hosting_.sessionEnded(process.id);
  leases_.release(session);
  const uint64_t steps = process.counters->step.value();
  if (how == Departure::left || serving_.outgoing().moved()) {
    const std::string line =
        fmt::format("{} left after {} steps{}", rankText(gone.rank), steps,
                    serving_.outgoing().moved() ? ", to continue where the model is now" : "");
    note(spdlog::level::info, fieldsOf("left", gone, steps), line);
  } else {
    const std::string line = fmt::format("{} is lost after {} steps: {}", named(gone), steps, why);
    LogFields fields = fieldsOf(by.empty() ? "lost" : "removed", gone, steps);
    fields.by = by;
    note(spdlog::level::warn, fields, line);
  }
  sessions_.erase(entry);
  roster_.depart(session, end_.requested() && how == Departure::lost ? Departure::daemonEnding : how);
  hosting_.excludeFromRounds(session);
  pause_.resumeTrainer(session);
  pause_.look();
  if (!gone.bridges) samples_.leave(session);
  // A trainer process that left does not return. A bridge may, and resumes its unfinished push.
  if (how == Departure::left && !gone.bridges) processes_.end(gone.rank);
  if (const auto next = arrival_.depart(session)) {
    spdlog::warn("the initializer has departed; {} initializes the model",
                 rankText(sessions_.at(*next).candidate.rank));
  }
}

// --- A move to other daemons --------------------------------------------------------------------------

std::vector<TrainerRef> Coordinator::trainersIn() const {
  std::vector<TrainerRef> in;
  for (const auto& [id, session] : sessions_) in.push_back(session.candidate.in(id));
  return in;
}

RunProgress Coordinator::progress() const {
  return {static_cast<uint32_t>(roster_.trainers()), terms_.exitWhenDone && roster_.everyoneDone()};
}

std::set<Rank> Coordinator::ranks() const {
  std::set<Rank> all;
  for (const auto& [id, session] : sessions_) {
    if (!session.candidate.bridges) all.insert(session.candidate.rank);
  }
  return all;
}

void Coordinator::startMove(const MoveNotice& notice) {
  pause_.begin(notice);
  samples_.hurry(true);
}

void Coordinator::endMove(const DaemonAddresses& movedTo) {
  samples_.hurry(false);
  pause_.end(movedTo);
}

kj::Promise<MoveQuiescence::Answer> Coordinator::quiesce(SessionId session, uint64_t move,
                                                         const std::string& cannot) {
  const auto entry = sessions_.find(session);
  if (entry == sessions_.end())
    return MoveQuiescence::Answer(ErrorCode::sessionEnded, "the session has ended");
  return pause_.quiesce(entry->second.candidate.in(session), move, cannot);
}

// --- The end -----------------------------------------------------------------------------------------

void Coordinator::saveDepartedRanks() {
  if (!terms_.exitWhenDone) return;
  if (!terms_.keepsRanks) return endIfDone();
  // The leaving trainer gets its answer before all are notified of the end.
  finished_.keep({roster_.worldSize(), roster_.departed()}, [this] { endIfDone(); });
}

void Coordinator::endIfDone() {
  if (!terms_.exitWhenDone || end_.requested() || !roster_.everyoneDone()) return;
  if (roster_.hasBridge()) return;  // it has yet to forward their last updates
  const bool fixed = roster_.worldSizeMin() == roster_.worldSize();
  const uint64_t lost = roster_.lostCount();
  requestStop(fmt::format("all {}trainers are {}", fixed ? fmt::format("{} ", roster_.worldSize()) : "",
                          lost == 0 ? "done" : fmt::format("gone; lost on the way: {}", lost)));
}

void Coordinator::logOperatorRequest(const std::string& what, const std::string& by) {
  note(spdlog::level::info, {.event = "asked", .by = by}, fmt::format("{}, asked by {}", what, by));
}

void Coordinator::requestStop(std::string reason, EndOf what, const std::string& by) {
  const bool begins = end_.request(std::move(reason), what, !sessions_.empty());
  serving_.stop(end_.error(), end_.restarting());
  samples_.endWaits(end_.error());
  endMove({});
  if (!begins) return;
  events_.add("stopping", end_.error().message, by);
  arrival_.endWaits(end_.error());
  ranksPair_.fulfiller->fulfill();
  if (!end_.restarting()) endDisconnected();
  end_.begin();
}

bool Coordinator::close() {
  finished_.close();
  // If another daemon is to resume, that one decides whether the run is over.
  const bool over = terms_.exitWhenDone && roster_.everyoneDone() && !end_.restarting();
  if (over) samples_.closeFinished();
  return over;
}

std::vector<std::pair<Rank, std::string>> Coordinator::pushCodecs() const {
  std::vector<std::pair<Rank, std::string>> codecs;
  for (const auto& [id, session] : sessions_) {
    codecs.emplace_back(session.candidate.rank, session.candidate.codec);
  }
  return codecs;
}

}  // namespace psd
