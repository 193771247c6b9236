#include "server/membership/roster.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/types/bridge.h"
#include "common/types/invariant_check.h"

namespace psd {

namespace {

std::string placeOf(const Candidate& candidate) {
  return candidate.bridges ? "the bridge's place" : "rank " + std::to_string(candidate.rank.value);
}

}  // namespace

size_t Roster::trainers() const {
  return static_cast<size_t>(
      std::ranges::count_if(sessions_, [](const auto& session) { return !session.second.bridges; }));
}

void Roster::configure(uint32_t worldSize, uint32_t worldSizeMin) {
  const InvariantCheck check(*this);
  configured_ = worldSize;
  least_ = worldSizeMin;
  if (trainers() == 0 && seen_.empty()) worldSize_ = worldSize;
}

Status Roster::place(Candidate& candidate) const {
  if (candidate.bridges) return {};
  if (candidate.worldSize == 0) candidate.worldSize = expected();
  if (candidate.worldSize == 0 && candidate.anyRank) {
    candidate.worldSize = awaited().empty() ? 1 : std::max(worldSize_, 1u);
  }
  if (candidate.worldSize == 0) {
    return {ErrorCode::invalidArgument,
            fmt::format("rank {} gives no world size, and neither a joined trainer nor the daemon's config "
                        "(world_size) does; set --world-size of psd-trainer, world_size= of Python, or "
                        "WORLD_SIZE in the environment",
                        candidate.rank.value)};
  }
  if (!candidate.anyRank) return {};
  std::set<Rank> taken;
  if (candidate.lastDaemon == 0) taken = kept_;
  for (const auto& [id, other] : sessions_) {
    if (candidate.incarnation != 0 && other.incarnation == candidate.incarnation &&
        mayResume(other.owner, candidate.owner)) {
      candidate.rank = other.rank;  // the trainer returns
      return {};
    }
    taken.insert(other.rank);
  }
  for (candidate.rank = Rank{0}; taken.contains(candidate.rank); candidate.rank.value++) continue;
  if (candidate.rank.value < candidate.worldSize) return {};
  if (candidate.worldSize == 1 && configured_ == 0) {
    return {ErrorCode::rankTaken,
            "the only rank is taken by a trainer whose world size is 1; close that one first, or give all "
            "trainers their number: world_size of the daemon's config, --world-size of psd-trainer, "
            "world_size= of Python, or WORLD_SIZE in the environment"};
  }
  return {ErrorCode::rankTaken, "all " + std::to_string(candidate.worldSize) + " ranks are taken"};
}

bool Roster::needsRoom(const Candidate& candidate) const {
  if (!candidate.anyRank || !full()) return false;
  if (candidate.worldSize != 0 && candidate.worldSize != expected()) return false;
  return candidate.incarnation == 0 ||
         std::none_of(sessions_.begin(), sessions_.end(), [&](const auto& session) {
           return session.second.incarnation == candidate.incarnation &&
                  mayResume(session.second.owner, candidate.owner);
         });
}

bool Roster::canRejoinRank(const Candidate& candidate) const {
  if (kept_.empty() || !candidate.anyRank || candidate.lastDaemon != 0) return false;
  Candidate placed = candidate;
  const Status status = place(placed);
  return !status.ok() && status.error().code == ErrorCode::rankTaken;
}

std::set<Rank> Roster::awaited() const {
  std::set<Rank> ranks;
  for (const Rank rank : kept_) {
    if (!holderOf(rank) && !departed().contains(rank)) ranks.insert(rank);
  }
  return ranks;
}

Status Roster::mayJoin(const Candidate& candidate) const {
  PSD_RETURN_IF_ERROR(fitsWorld(candidate));
  auto last = lastHolders_.find(candidate.rank);
  if (last != lastHolders_.end() && candidate.incarnation != 0 &&
      last->second.incarnation == candidate.incarnation && !mayResume(last->second.owner, candidate.owner)) {
    return Error{ErrorCode::forbidden, "the session of " + placeOf(candidate) +
                                           " belongs to another caller; only the token, certificate or user "
                                           "that began a session may resume it"};
  }
  // A trainer joined at an earlier daemon was joined before all trainers that this daemon has seen.
  const bool wasIn = candidate.lastDaemon != 0;
  if (wasIn && last != lastHolders_.end() && last->second.incarnation != candidate.incarnation) {
    return Error{ErrorCode::rankTaken, placeOf(candidate) + " was taken over by process " +
                                           std::to_string(last->second.pid) + " on " + last->second.host};
  }
  return {};
}

Status Roster::fitsWorld(const Candidate& candidate) const {
  if (candidate.bridges) return {};
  const uint32_t expected = this->expected();
  if (expected != 0 && candidate.worldSize != expected) {
    return Error{ErrorCode::worldSizeMismatch,
                 "rank " + std::to_string(candidate.rank.value) + " has a world size of " +
                     std::to_string(candidate.worldSize) + ", but " +
                     (configured_ != 0 ? "the daemon's config says " : "the joined trainers have ") +
                     std::to_string(expected)};
  }
  if (candidate.rank.value >= candidate.worldSize) {
    return Error{ErrorCode::invalidArgument, "rank " + std::to_string(candidate.rank.value) +
                                                 " is not below the world size " +
                                                 std::to_string(candidate.worldSize)};
  }
  return {};
}

Result<SessionId> Roster::join(const Candidate& candidate) {
  const InvariantCheck check(*this);
  PSD_RETURN_IF_ERROR(mayJoin(candidate));
  if (auto holder = holderOf(candidate.rank)) {
    const Candidate& other = sessions_.at(*holder);
    return Error{ErrorCode::rankTaken, placeOf(candidate) + " is taken by process " +
                                           std::to_string(other.pid) + " on " + other.host};
  }
  lastHolders_[candidate.rank] = candidate;
  if (!candidate.bridges) {
    if (candidate.worldSize != worldSize_) seen_.clear();  // another world
    worldSize_ = candidate.worldSize;
    seen_.insert(candidate.rank);
  }
  const SessionId session{++lastSession_};
  sessions_.emplace(session, candidate);
  return session;
}

void Roster::setOwner(SessionId session, const std::string& owner) {
  const InvariantCheck check(*this);
  if (owner.empty()) return;
  Candidate& trainer = sessions_.at(session);
  trainer.owner = owner;
  lastHolders_[trainer.rank].owner = owner;
}

void Roster::depart(SessionId session, Departure how) {
  const InvariantCheck check(*this);
  const auto trainer = sessions_.find(session);
  if (trainer == sessions_.end()) return;
  if (how == Departure::daemonEnding) seen_.erase(trainer->second.rank);
  if (how == Departure::lost && !trainer->second.bridges) lost_++;
  sessions_.erase(trainer);
}

bool Roster::recall(uint32_t worldSize, std::set<Rank> departed) {
  const InvariantCheck check(*this);
  if (configured_ != 0 && configured_ != worldSize) return false;
  worldSize_ = worldSize;
  seen_ = std::move(departed);
  return true;
}

std::set<Rank> Roster::departed() const {
  std::set<Rank> departed = seen_;
  for (const auto& [id, trainer] : sessions_) departed.erase(trainer.rank);
  return departed;
}

std::optional<SessionId> Roster::holderOf(Rank rank) const {
  for (const auto& [id, trainer] : sessions_) {
    if (trainer.rank == rank) return id;
  }
  return std::nullopt;
}

bool Roster::everyoneDone() const {
  return worldSize_ != 0 && trainers() == 0 && seen_.size() >= worldSizeMin();
}

std::string Roster::checkInvariants() const {
  std::set<Rank> ranks;
  for (const auto& [session, trainer] : sessions_) {
    if (session.value == 0 || session.value > lastSession_)
      return "a session has a number that was not given";
    if (!ranks.insert(trainer.rank).second) return "two sessions have " + placeOf(trainer);
    if (trainer.bridges != (trainer.rank == kBridgeRank)) return "a trainer has the bridge's place";
    const auto last = lastHolders_.find(trainer.rank);
    if (last == lastHolders_.end() || last->second.incarnation != trainer.incarnation ||
        last->second.owner != trainer.owner) {
      return placeOf(trainer) + " was last held by another process than the joined one";
    }
    if (trainer.bridges) continue;
    if (trainer.worldSize != worldSize_) return placeOf(trainer) + " is joined with another world size";
    if (trainer.rank.value >= worldSize_) return placeOf(trainer) + " is not below the world size";
    if (!seen_.contains(trainer.rank)) return placeOf(trainer) + " is joined, and has never joined";
  }
  return "";
}

}  // namespace psd
