#include "server/rpc/caller.h"

#include <ctime>
#include <utility>

namespace psd {
namespace {

constexpr unsigned kFailuresMax = 5;
// Time for a revoked peer to close the connection itself.
constexpr kj::Duration kGoodbye = 1 * kj::SECONDS;

Error reservedForOperators() {
  return {ErrorCode::unavailable,
          "limits.connections is reached; the remaining connections are reserved for operators"};
}

}  // namespace

Caller::Caller(Peer peer, const Authenticator& authenticator, kj::TimePoint now)
    : Caller(std::move(peer), authenticator, now, kj::newPromiseAndFulfiller<void>()) {}

Caller::Caller(Peer peer, const Authenticator& authenticator, kj::TimePoint now,
               kj::PromiseFulfillerPair<void> revocation)
    : peer_(std::move(peer)),
      authenticator_(authenticator),
      mayLogInSince_(now),
      described_(peer_.where),
      revokedAt_(now),
      revoke_(kj::mv(revocation.fulfiller)),
      revocation_(revocation.promise.fork()) {}

Result<Identity> Caller::logIn(std::string_view token, const std::string& program) {
  if (access_) return access_->identity;
  PSD_ASSIGN_OR_RETURN(Access access, authenticator_.logIn(token, peer_));
  if (peer_.reserved && access.identity.role != Role::admin) return reservedForOperators();
  access_ = std::move(access);
  described_ += " (" + program + ")";
  if (!access_->identity.name.empty()) described_ += " as '" + access_->identity.name + "'";
  return access_->identity;
}

std::string Caller::callerText() const {
  return identity().empty() ? peer_.where : identity() + " at " + peer_.where;
}

Status Caller::mayTrain() const { return peer_.reserved ? Status(reservedForOperators()) : Status(); }

bool Caller::failedTooOften(kj::TimePoint answeredAt) {
  mayLogInSince_ = answeredAt;
  return ++failures_ >= kFailuresMax;
}

bool Caller::expired() const {
  return access_ && access_->expires && !revoked_ && std::time(nullptr) >= *access_->expires;
}

bool Caller::recheckAccess(kj::TimePoint now) {
  if (!access_ || revoked_) return false;
  const Status holds = authenticator_.stillHolds(*access_, peer_);
  if (holds.ok()) return false;
  revoked_ = holds.error();
  revokedAt_ = now;
  revoke_->fulfill();
  return true;
}

std::optional<std::string> Caller::mustEnd(kj::TimePoint now, std::chrono::milliseconds loginTimeout) const {
  if (revoked_ && now - revokedAt_ >= kGoodbye) return revoked_->message;
  const bool late = now - mayLogInSince_ >= loginTimeout.count() * kj::MILLISECONDS;
  if (access_ || !late || (!authenticator_.authenticationRequired() && !peer_.reserved)) return {};
  return "it did not log in within limits.login_timeout_ms (" + std::to_string(loginTimeout.count()) + ")";
}

}  // namespace psd
