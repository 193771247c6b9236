#include "server/tools/token_command.h"

#include <cerrno>
#include <cstdio>

#include <unistd.h>

#include "common/os/private_file.h"
#include "server/auth/token_file.h"

namespace psd {
namespace {

/// Fails if a daemon would reject the file with this line added.
Status checkFits(const std::string& file, const KnownToken& token) {
  if (access(file.c_str(), F_OK) != 0 && errno == ENOENT) return {};
  PSD_ASSIGN_OR_RETURN(const auto known, readTokenFile(file));
  if (known.size() >= kTokensMax) {
    return {ErrorCode::invalidArgument, file + ": has " + std::to_string(known.size()) +
                                            " tokens already, which is the maximum; remove a line first"};
  }
  for (const KnownToken& other : known) {
    if (other.name != token.name || other.role == token.role) continue;
    return {ErrorCode::invalidArgument, file + ": '" + token.name + "' has role " +
                                            std::string(roleName(other.role)) +
                                            " there, and a name has one role; remove that line first"};
  }
  return {};
}

}  // namespace

Status newToken(const std::string& name, const std::string& role, const std::string& file) {
  KnownToken token;
  token.name = name;
  if (Status fits = checkTokenName(name); !fits.ok()) return {fits.error().code, "--name: " + fits.message()};
  const auto parsed = parseRole(role);
  if (!parsed.ok()) return {parsed.error().code, "--role: " + parsed.message()};
  token.role = *parsed;
  PSD_ASSIGN_OR_RETURN(const Hasher hasher, Hasher::make());
  PSD_ASSIGN_OR_RETURN(const std::string secret, generateToken());
  PSD_ASSIGN_OR_RETURN(token.digest, hasher.sha256(secret));
  if (file.empty()) {
    std::fprintf(stderr, "the line for auth.tokens:\n%s\n", token.line().c_str());
  } else {
    PSD_RETURN_IF_ERROR(checkFits(file, token));
    PSD_RETURN_IF_ERROR(appendPrivateLine(file, token.line()));
  }
  std::puts(secret.c_str());
  return {};
}

}  // namespace psd
