#include "server/tools/token_command.h"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <string_view>
#include <utility>
#include <vector>

#include <unistd.h>

#include "common/os/private_file.h"
#include "common/text/number.h"
#include "common/text/text.h"
#include "server/auth/token_file.h"
#include "server/status/table_text.h"

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

/// "30d" from now on; the units are m, h, d and w.
Result<std::time_t> readExpiry(const std::string& text) {
  constexpr uint64_t kMinutesMax = 100ull * 366 * 24 * 60;
  const std::pair<char, uint64_t> units[] = {{'m', 1}, {'h', 60}, {'d', 24 * 60}, {'w', 7 * 24 * 60}};
  for (const auto& [unit, minutes] : units) {
    const auto count = toNumber<uint64_t>(std::string_view(text).substr(0, text.size() - 1));
    if (!text.ends_with(unit) || !count || *count == 0 || *count > kMinutesMax / minutes) continue;
    return std::time(nullptr) + static_cast<std::time_t>(*count * minutes * 60);
  }
  return Error{ErrorCode::invalidArgument,
               "--expires: '" + printable(text) +
                   "' is not a time from now on, such as 12h, 30d or 8w, of at most "
                   "100 years"};
}

}  // namespace

Status newToken(const std::string& name, const std::string& role, const std::string& file,
                const std::string& expires) {
  KnownToken token;
  token.name = name;
  if (Status fits = checkTokenName(name); !fits.ok()) return {fits.error().code, "--name: " + fits.message()};
  const auto parsed = parseRole(role);
  if (!parsed.ok()) return {parsed.error().code, "--role: " + parsed.message()};
  token.role = *parsed;
  if (!expires.empty()) {
    PSD_ASSIGN_OR_RETURN(token.expires, readExpiry(expires));
  }
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

Status listTokens(const std::string& file) {
  PSD_ASSIGN_OR_RETURN(const auto tokens, readTokenFile(file));
  const std::time_t now = std::time(nullptr);
  std::vector<TextRow> rows = {{"name", "role", "expires", "sha256"}};
  for (const KnownToken& token : tokens) {
    const std::string expires = token.expires ? utcText(*token.expires) : "never";
    rows.push_back({token.name, std::string(roleName(token.role)),
                    expires + (token.expired(now) ? ", EXPIRED" : ""), hexOf(token.digest).substr(0, 12)});
  }
  std::fputs(tokens.empty() ? "no tokens\n" : alignedRows(rows).c_str(), stdout);
  return {};
}

Status revokeTokens(const std::string& file, const std::string& name) {
  PSD_ASSIGN_OR_RETURN(const size_t removed, removeTokens(file, name));
  if (removed == 0) {
    return {ErrorCode::invalidArgument,
            file + ": has no token of '" + printable(name) + "'; see psd token list"};
  }
  std::printf("revoked %zu token%s of '%s'; 'psd reload' makes a running daemon refuse %s\n", removed,
              removed == 1 ? "" : "s", name.c_str(), removed == 1 ? "it" : "them");
  return {};
}

}  // namespace psd
