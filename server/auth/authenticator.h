#pragma once

#include <atomic>
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

/// What a connection itself tells of who is at its other end. A value type.
struct Peer {
  std::string where;            ///< for people, as "127.0.0.1:53211"
  std::optional<uid_t> user{};  ///< of a Unix socket: whose process it is
  std::vector<std::string>
      certificateNames{};  ///< of a client's certificate that was checked; its common name first
  bool reserved = false;   ///< it came beyond limits.connections, where operators alone are let in

  /// Whether it is a process of the daemon's own user, or of root.
  bool ownUser() const;
};

/// Who a caller is, and what it may do.
struct Identity {
  std::string name;
  Role role = Role::reader;
  /// Tells callers apart and names them: "token 'ops'", "certificate 'node-7'", "user 1000"; empty: the
  /// connection has nothing that identifies its caller.
  std::string caller = {};
};

/// How somebody came in, to be looked at again when the rules change.
struct Access {
  Identity identity;
  std::optional<Sha256> token{};  ///< nothing: by what the connection tells
};

/// Who may do what, as the configuration and its token file say. Immutable.
class AuthRules {
 public:
  /// Reads the token file. `config` none: who can connect may do everything.
  static Result<std::shared_ptr<const AuthRules>> read(const std::optional<AuthConfig>& config);

  /// Whether callers must show who they are.
  bool asked() const { return config_.has_value(); }
  Result<Access> byToken(std::string_view token) const;
  /// By what the connection tells: a certificate's name, the user behind a Unix socket.
  Result<Access> byPeer(const Peer& peer) const;
  /// Who that is by these rules.
  Result<Identity> lookAgain(const Access& access, const Peer& peer) const;
  /// For people: whose tokens have come or gone or have another role than before; empty where none.
  std::string changesFrom(const AuthRules& before) const;

 private:
  explicit AuthRules(std::optional<AuthConfig> config) : config_(std::move(config)) {}
  const KnownToken* find(const Sha256& digest) const;

  std::optional<AuthConfig> config_;
  std::vector<KnownToken> tokens_;
  std::optional<Hasher> hasher_;  // where there are tokens
};

/// Who may do what in a daemon, whatever protocol a caller speaks. Thread-safe.
class Authenticator {
 public:
  /// Until adopt() everybody may do everything.
  Authenticator();

  /// From now on these rules hold. Whoever has an Access is to look at it again. Gives what has changed, for
  /// people.
  std::string adopt(std::shared_ptr<const AuthRules> rules);

  bool asks() const { return rules()->asked(); }
  /// A token, where there is one, decides alone; else what the connection tells. An Error, unauthenticated,
  /// is fit for the caller to read.
  Result<Access> logIn(std::string_view token, const Peer& peer) const;
  /// The identity that a token stands for. unauthenticated: none.
  Result<Identity> byToken(std::string_view token) const;
  /// Whether somebody still may do what it may; unauthenticated or forbidden if not.
  Status stillHolds(const Access& access, const Peer& peer) const;

  // Failed logins are answered late, so that guessing takes long, and so many at a time at most, so that the
  // guesses themselves take no room.

  static constexpr size_t kHeldBackMax = 64;
  /// Counts one that waits for its answer, until the result goes; null where there is no room for it.
  std::shared_ptr<const void> holdBack();

 private:
  std::shared_ptr<const AuthRules> rules() const;

  mutable std::mutex mutex_;                // guards what follows
  std::shared_ptr<const AuthRules> rules_;  // never null
  std::shared_ptr<std::atomic<size_t>> heldBack_ = std::make_shared<std::atomic<size_t>>(0);
};

}  // namespace psd
