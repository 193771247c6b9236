#include "server/membership/roster.h"

namespace psd {

Result<SessionId> Roster::join(const Candidate& candidate) {
  uint32_t expected = configured_ != 0 ? configured_ : (sessions_.empty() ? 0 : worldSize_);
  if (candidate.worldSize == 0) {
    return Error{ErrorCode::invalidArgument, "a world size of 0; it is the number of trainers, at least 1"};
  }
  if (expected != 0 && candidate.worldSize != expected) {
    return Error{ErrorCode::worldSizeMismatch,
                 "rank " + std::to_string(candidate.rank.value) + " says a world size of " +
                     std::to_string(candidate.worldSize) + ", but " +
                     (configured_ != 0 ? "the daemon's config says " : "the trainers that are in say ") +
                     std::to_string(expected)};
  }
  if (candidate.rank.value >= candidate.worldSize) {
    return Error{ErrorCode::invalidArgument, "rank " + std::to_string(candidate.rank.value) +
                                                 " is not below the world size " +
                                                 std::to_string(candidate.worldSize)};
  }
  for (const auto& [id, other] : sessions_) {
    if (other.rank != candidate.rank) continue;
    return Error{ErrorCode::rankTaken, "rank " + std::to_string(candidate.rank.value) +
                                           " is taken by process " + std::to_string(other.pid) + " on " +
                                           other.host};
  }
  if (candidate.worldSize != worldSize_) seen_.clear();  // another world
  worldSize_ = candidate.worldSize;
  seen_.insert(candidate.rank);
  SessionId session{++lastSession_};
  sessions_.emplace(session, candidate);
  return session;
}

void Roster::depart(SessionId session, Departure how) {
  if (sessions_.erase(session) != 0 && how == Departure::lost) lost_++;
}

bool Roster::everyoneDone() const {
  return worldSize_ != 0 && sessions_.empty() && seen_.size() == worldSize_;
}

}  // namespace psd
