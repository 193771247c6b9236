#include "server/auth/authenticator.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fnmatch.h>
#include <unistd.h>

#include "common/auth/credentials.h"
#include "common/text/text.h"

namespace psd {
namespace {

Error unknown(std::string message) { return {ErrorCode::unauthenticated, std::move(message)}; }

Error expired(const KnownToken& token) {
  return unknown(fmt::format("the token of '{}' expired at {}", token.name, utcText(*token.expires)));
}

std::string numberOf(uid_t user) { return "user " + std::to_string(user); }

Identity byTokenOf(const KnownToken& token) { return {token.name, token.role, "token '" + token.name + "'"}; }

Identity byCertificateOf(const std::string& name, Role role) {
  return {name, role, "certificate '" + printable(name) + "'"};
}

}  // namespace

bool Peer::ownUser() const { return user && (*user == geteuid() || *user == 0); }

Result<std::shared_ptr<const AuthRules>> AuthRules::read(const std::optional<AuthConfig>& config) {
  const std::shared_ptr<AuthRules> rules(new AuthRules(config));
  if (!config || config->tokens.empty()) return std::shared_ptr<const AuthRules>(rules);
  const auto failed = [](const Error& error) { return Error{error.code, "auth.tokens: " + error.message}; };
  auto hasher = Hasher::make();
  if (!hasher.ok()) return failed(hasher.error());
  auto tokens = readTokenFile(config->tokens);
  if (!tokens.ok()) return failed(tokens.error());
  rules->hasher_ = *hasher;
  rules->tokens_ = *std::move(tokens);
  return std::shared_ptr<const AuthRules>(rules);
}

const KnownToken* AuthRules::find(const Sha256& digest) const {
  const KnownToken* found = nullptr;
  for (const KnownToken& token : tokens_) {  // no early exit, so that timing reveals no match
    if (hasher_->same(token.digest, digest)) found = &token;
  }
  return found;
}

Result<Access> AuthRules::byToken(std::string_view token) const {
  const Error stranger = unknown("the daemon does not know this token");
  if (!hasher_ || token.size() > kTokenBytesMax) return stranger;
  PSD_ASSIGN_OR_RETURN(const Sha256 digest, hasher_->sha256(token));
  const KnownToken* const known = find(digest);
  if (known == nullptr) return stranger;
  if (known->expired(std::time(nullptr))) return expired(*known);
  return Access{byTokenOf(*known), digest, known->expires};
}

Result<Access> AuthRules::byPeer(const Peer& peer) const {
  if (!config_) {
    if (!peer.certificateNames.empty()) {
      return Access{byCertificateOf(peer.certificateNames.front(), Role::admin)};
    }
    return Access{{"", Role::admin, peer.user ? numberOf(*peer.user) : ""}};
  }
  for (const CertificateRole& each : config_->certificates) {
    for (const std::string& name : peer.certificateNames) {
      if (fnmatch(each.glob.c_str(), name.c_str(), 0) == 0) return Access{byCertificateOf(name, each.role)};
    }
  }
  if (peer.ownUser()) return Access{{numberOf(*peer.user), config_->local, numberOf(*peer.user)}};
  std::string what = "authentication required: give a token (--token-file, PSD_TOKEN_FILE or PSD_TOKEN)";
  if (!config_->certificates.empty()) what += " or a certificate (--tls-cert, --tls-key)";
  if (!peer.certificateNames.empty()) {
    what += "; auth.certificates has no role for '" + printable(peer.certificateNames.front()) + "'";
  }
  if (peer.user) what += "; " + numberOf(*peer.user) + " is neither the daemon's user nor root";
  return unknown(std::move(what));
}

Result<Access> AuthRules::recheck(const Access& access, const Peer& peer) const {
  if (config_ && access.token) {
    const KnownToken* const known = find(*access.token);
    if (known == nullptr) return unknown("the token of '" + access.identity.name + "' is no longer valid");
    if (known->expired(std::time(nullptr))) return expired(*known);
    return Access{byTokenOf(*known), access.token, known->expires};
  }
  return byPeer(peer);
}

std::string AuthRules::changesFrom(const AuthRules& before) const {
  std::string text;
  const auto add = [&](const std::string& change) { text += (text.empty() ? "" : ", ") + change; };
  const auto rolesOf = [](const AuthRules& rules) {
    std::map<std::string, Role> roles;
    for (const KnownToken& token : rules.tokens_) roles.emplace(token.name, token.role);
    return roles;
  };
  const auto old = rolesOf(before), now = rolesOf(*this);
  for (const auto& [name, role] : old) {
    const auto other = now.find(name);
    if (other == now.end()) {
      add(fmt::format("token '{}': {} -> none", name, roleName(role)));
    } else if (other->second != role) {
      add(fmt::format("token '{}': {} -> {}", name, roleName(role), roleName(other->second)));
    }
  }
  for (const auto& [name, role] : now) {
    if (!old.contains(name)) add(fmt::format("token '{}': none -> {}", name, roleName(role)));
  }
  // Tokens that were replaced, or expire at another time, while their names kept their roles.
  const auto digestsOf = [&](const AuthRules& rules) {
    std::set<std::pair<Sha256, std::optional<std::time_t>>> digests;
    for (const KnownToken& token : rules.tokens_) {
      if (old.contains(token.name) && now.contains(token.name)) digests.emplace(token.digest, token.expires);
    }
    return digests;
  };
  if (digestsOf(before) != digestsOf(*this)) add("tokens replaced");
  return text;
}

Authenticator::Authenticator() : rules_(AuthRules::read({}).value()) {}

std::shared_ptr<const AuthRules> Authenticator::rules() const {
  const std::lock_guard lock(mutex_);
  return rules_;
}

std::string Authenticator::adopt(std::shared_ptr<const AuthRules> rules) {
  const std::lock_guard lock(mutex_);
  std::swap(rules_, rules);
  return rules_->changesFrom(*rules);
}

Result<Access> Authenticator::logIn(std::string_view token, const Peer& peer) const {
  const auto now = rules();
  return token.empty() || !now->authenticationRequired() ? now->byPeer(peer) : now->byToken(token);
}

Result<Identity> Authenticator::byToken(std::string_view token) const {
  PSD_ASSIGN_OR_RETURN(const Access access, rules()->byToken(token));
  return access.identity;
}

Status Authenticator::stillHolds(Access& access, const Peer& peer) const {
  PSD_ASSIGN_OR_RETURN(const Access held, rules()->recheck(access, peer));
  access.expires = held.expires;
  const Identity& now = held.identity;
  if (includes(now.role, access.identity.role)) return {};
  return {ErrorCode::forbidden, fmt::format("'{}' has role {} now, and had {}", now.name, roleName(now.role),
                                            roleName(access.identity.role))};
}

std::shared_ptr<const void> Authenticator::delayReply() {
  if (delayedReplies_->fetch_add(1) >= kDelayedRepliesMax) {
    delayedReplies_->fetch_sub(1);
    return nullptr;
  }
  return {delayedReplies_.get(), [held = delayedReplies_](const void*) { held->fetch_sub(1); }};
}

}  // namespace psd
