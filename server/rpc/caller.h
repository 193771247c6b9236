#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include <kj/async.h>
#include <kj/timer.h>

#include "server/auth/authenticator.h"

namespace psd {

/// Who is at the other end of a connection, and what that may do. Belongs to the connection's loop.
class Caller {
 public:
  /// `authenticator` outlives it. `now`: when the connection came.
  Caller(Peer peer, const Authenticator& authenticator, kj::TimePoint now);

  /// For people: where the peer is, once it logged in also what it calls itself, and its name where it has
  /// one.
  const std::string& described() const { return described_; }

  /// Identity::caller once logged in; empty: nothing identifies the peer.
  const std::string& identity() const { return access_ ? access_->identity.caller : kNobody; }
  /// The caller of a request, for the log: identity() with the peer's address, or the address alone.
  std::string asker() const;

  /// Finds out who the peer is, by a token if it has given one; `program` is what the peer calls itself. Once
  /// it has succeeded it gives the same again.
  Result<Identity> logIn(std::string_view token, const std::string& program);
  /// Whether the peer may train: not over a connection that is kept for operators.
  Status mayTrain() const;
  /// Another login has failed: whether those were so many that the connection is to end.
  bool failedTooOften();

  /// Other rules hold from now on. Whether the peer has lost what it might, by this call.
  bool lookAgain(kj::TimePoint now);
  /// Why the peer may not do any more what it might; nothing while it may.
  const std::optional<Error>& revoked() const { return revoked_; }
  /// Resolves when revoked() says why.
  kj::Promise<void> whenRevoked() { return revocation_.addBranch(); }

  /// Why the connection is to end now: it was not logged in in time, or has been told that it may do nothing
  /// more.
  std::optional<std::string> mustEnd(kj::TimePoint now, std::chrono::milliseconds loginTimeout) const;

 private:
  explicit Caller(Peer peer, const Authenticator& authenticator, kj::TimePoint now,
                  kj::PromiseFulfillerPair<void> revocation);

  static inline const std::string kNobody;

  const Peer peer_;
  const Authenticator& authenticator_;
  const kj::TimePoint cameAt_;
  std::string described_;
  std::optional<Access> access_;  // once logged in
  unsigned failures_ = 0;
  std::optional<Error> revoked_;
  kj::TimePoint revokedAt_;
  kj::Own<kj::PromiseFulfiller<void>> revoke_;
  kj::ForkedPromise<void> revocation_;
};

}  // namespace psd
