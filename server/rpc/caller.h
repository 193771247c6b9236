#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include <kj/async.h>
#include <kj/timer.h>

#include "server/auth/authenticator.h"

namespace psd {

/// The identity and permissions of a connection's peer. Belongs to the connection's loop.
class Caller {
 public:
  /// `authenticator` outlives it. `now`: time of connection.
  Caller(Peer peer, const Authenticator& authenticator, kj::TimePoint now);

  /// Human-readable: the peer's address and, once logged in, its program and name, if it has one.
  const std::string& described() const { return described_; }

  /// Identity::caller once logged in; empty if the peer is anonymous.
  const std::string& identity() const { return access_ ? access_->identity.caller : kNobody; }
  /// The caller of a request, for the log: identity() with the peer's address, or only the address.
  std::string callerText() const;

  /// Authenticates the peer, by `token` unless it is empty; `program` is the peer's self-description. After a
  /// success it returns the same identity again.
  Result<Identity> logIn(std::string_view token, const std::string& program);
  /// Whether the peer may train; not over a connection reserved for operators.
  Status mayTrain() const;
  /// Counts a failed login, which is answered at that time; true if the connection must end.
  bool failedTooOften(kj::TimePoint answeredAt);

  /// Whether the token with which the peer logged in has expired: its access must be reevaluated.
  bool expired() const;
  /// Reevaluates access after the rules changed. Whether the peer lost its access by this call.
  bool recheckAccess(kj::TimePoint now);
  /// Why the peer's access was revoked; nothing while it has access.
  const std::optional<Error>& revoked() const { return revoked_; }
  /// Resolves once revoked() is set.
  kj::Promise<void> whenRevoked() { return revocation_.addBranch(); }

  /// Why the connection must end now: it did not log in in time since it connected or since the answer to its
  /// last failed login, or its access was revoked and it has been notified.
  std::optional<std::string> mustEnd(kj::TimePoint now, std::chrono::milliseconds loginTimeout) const;

 private:
  explicit Caller(Peer peer, const Authenticator& authenticator, kj::TimePoint now,
                  kj::PromiseFulfillerPair<void> revocation);

  static inline const std::string kNobody;

  const Peer peer_;
  const Authenticator& authenticator_;
  kj::TimePoint mayLogInSince_;
  std::string described_;
  std::optional<Access> access_;  // once logged in
  unsigned failures_ = 0;
  std::optional<Error> revoked_;
  kj::TimePoint revokedAt_;
  kj::Own<kj::PromiseFulfiller<void>> revoke_;
  kj::ForkedPromise<void> revocation_;
};

}  // namespace psd
