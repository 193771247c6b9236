#pragma once

#include <atomic>
#include <ctime>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include "server/auth/auth_config.h"
#include "server/auth/token_file.h"

namespace psd {

/// Properties of a connection that identify its peer. A value type.
struct Peer {
  std::string where;                            ///< human-readable, such as "127.0.0.1:53211"
  std::optional<uid_t> user{};                  ///< on a Unix socket: the user of the peer's process
  std::vector<std::string> certificateNames{};  ///< of the verified client certificate; common name first
  bool reserved = false;                        ///< accepted beyond limits.connections, only for operators

  /// Whether the peer is a process of the daemon's own user, or of root.
  bool ownUser() const;
};

/// An authenticated caller and its role.
struct Identity {
  std::string name;
  Role role = Role::reader;
  /// Identifies the caller: "token 'ops'", "certificate 'node-7'", "user 1000"; empty: the connection has
  /// nothing that identifies it.
  std::string caller = {};
};

/// How a caller authenticated, to be rechecked when the rules change.
struct Access {
  Identity identity;
  std::optional<Sha256> token{};         ///< nullopt: by properties of the connection
  std::optional<std::time_t> expires{};  ///< when the token stops being valid; empty: never
};

/// Authorization rules from the configuration and its token file. Immutable.
class AuthRules {
 public:
  /// Reads the token file. Without `config`, every peer that can connect is an admin.
  static Result<std::shared_ptr<const AuthRules>> read(const std::optional<AuthConfig>& config);

  /// Whether callers must authenticate.
  bool authenticationRequired() const { return config_.has_value(); }
  Result<Access> byToken(std::string_view token) const;
  /// By properties of the connection: a certificate's name, or the user of a Unix socket.
  Result<Access> byPeer(const Peer& peer) const;
  /// The access under these rules of a caller authenticated earlier.
  Result<Access> recheck(const Access& access, const Peer& peer) const;
  /// Human-readable: tokens added, removed, or with a changed role since `before`; empty if there are none.
  std::string changesFrom(const AuthRules& before) const;

 private:
  explicit AuthRules(std::optional<AuthConfig> config) : config_(std::move(config)) {}
  const KnownToken* find(const Sha256& digest) const;

  std::optional<AuthConfig> config_;
  std::vector<KnownToken> tokens_;
  std::optional<Hasher> hasher_;  // if there are tokens
};

/// Authenticates the callers of a daemon, of any protocol. Thread-safe.
class Authenticator {
 public:
  /// Until adopt(), every caller is an admin.
  Authenticator();

  /// Replaces the rules. Holders of an Access must recheck it, and so they must at Access::expires. Returns
  /// the changes, as changesTo() does.
  std::string adopt(std::shared_ptr<const AuthRules> rules);
  /// How `rules` differ from those in use, human-readable; empty: not at all.
  std::string changesTo(const AuthRules& next) const { return next.changesFrom(*rules()); }

  bool authenticationRequired() const { return rules()->authenticationRequired(); }
  /// If there is a token, only the token counts; otherwise the properties of the connection. The Error,
  /// unauthenticated, is suitable to be sent to the caller.
  Result<Access> logIn(std::string_view token, const Peer& peer) const;
  /// The identity of a token. ErrorCode::unauthenticated if it is unknown or has expired.
  Result<Identity> byToken(std::string_view token) const;
  /// Whether an Access still has its role; unauthenticated or forbidden otherwise. Updates `access.expires`.
  Status stillHolds(Access& access, const Peer& peer) const;

  // Replies to failed logins are delayed, to slow down guessing; the number of delayed replies is bounded, so
  // that guesses cannot exhaust memory.

  static constexpr size_t kDelayedRepliesMax = 64;
  /// Counts one delayed reply until the result is destroyed; null if there are too many.
  std::shared_ptr<const void> delayReply();

 private:
  std::shared_ptr<const AuthRules> rules() const;

  mutable std::mutex mutex_;                // guards the members below
  std::shared_ptr<const AuthRules> rules_;  // never null
  std::shared_ptr<std::atomic<size_t>> delayedReplies_ = std::make_shared<std::atomic<size_t>>(0);
};

}  // namespace psd
