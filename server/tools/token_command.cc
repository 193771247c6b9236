#include "server/tools/token_command.h"

#include <cstdint>
#include <cstdio>
#include <ctime>
#include <string_view>
#include <utility>
#include <vector>

#include "common/text/number.h"
#include "common/text/text.h"
#include "server/auth/token_file.h"
#include "server/status/table_text.h"

namespace psd {
namespace {

/// "30d" from now on; the units are h, d and w.
Result<std::time_t> readExpiry(const std::string& text) {
  constexpr uint64_t kHoursMax = 100ull * 366 * 24;
  const std::pair<char, uint64_t> units[] = {{'h', 1}, {'d', 24}, {'w', 7 * 24}};
  for (const auto& [unit, hours] : units) {
    if (!text.ends_with(unit)) continue;
    const auto count = toNumber<uint64_t>(std::string_view(text).substr(0, text.size() - 1));
    if (!count || *count == 0 || *count > kHoursMax / hours) continue;
    return std::time(nullptr) + static_cast<std::time_t>(*count * hours * 3600);
  }
  return Error{
      ErrorCode::invalidArgument,
      "--expires: '" + printable(text) + "' is not a lifetime, such as 12h, 30d or 8w, of at most 100 years"};
}

}  // namespace

Status newToken(const std::string& name, const std::string& role, const std::string& file,
                const std::optional<std::string>& expires) {
  KnownToken token;
  token.name = name;
  if (Status fits = checkTokenName(name); !fits.ok()) return {fits.error().code, "--name: " + fits.message()};
  const auto parsed = parseRole(role);
  if (!parsed.ok()) return {parsed.error().code, "--role: " + parsed.message()};
  token.role = *parsed;
  if (expires) {
    PSD_ASSIGN_OR_RETURN(token.expires, readExpiry(*expires));
  }
  PSD_ASSIGN_OR_RETURN(const Hasher hasher, Hasher::make());
  PSD_ASSIGN_OR_RETURN(const std::string secret, generateToken());
  PSD_ASSIGN_OR_RETURN(token.digest, hasher.sha256(secret));
  if (file.empty()) {
    std::fprintf(stderr, "the line for auth.tokens:\n%s\n", token.line().c_str());
  } else {
    PSD_RETURN_IF_ERROR(addToken(file, token));
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
  std::printf("revoked %s of '%s'; 'psd reload' makes a running daemon refuse %s\n",
              countText(removed, "token").c_str(), name.c_str(), removed == 1 ? "it" : "them");
  return {};
}

}  // namespace psd
