#include "server/auth/token_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <sys/random.h>

#include "common/os/private_file.h"
#include "common/text/text.h"

namespace psd {
namespace {

constexpr uint64_t kFileBytesMax = 4u << 20;
constexpr size_t kNameBytesMax = 64;
constexpr std::string_view kFileKind = "a token file";
constexpr std::string_view kHashName = "sha256:", kExpires = "expires=";
constexpr std::string_view kTokenPrefix = "psd_";  // prefix that makes a leaked token recognizable

std::vector<std::string_view> wordsOf(std::string_view line) {
  constexpr std::string_view kSpace = " \t\r";
  std::vector<std::string_view> words;
  for (size_t at = line.find_first_not_of(kSpace); at != std::string_view::npos;
       at = line.find_first_not_of(kSpace, at)) {
    const size_t end = std::min(line.find_first_of(kSpace, at), line.size());
    words.push_back(line.substr(at, end - at));
    at = end;
  }
  return words;
}

/// The inverse of utcText(): nothing for other spellings, and for dates that no calendar has.
std::optional<std::time_t> timeOf(const std::string& text) {
  std::tm parts{};
  if (strptime(text.c_str(), "%Y-%m-%dT%H:%M:%SZ", &parts) == nullptr) return {};
  const std::time_t time = timegm(&parts);
  return utcText(time) == text ? std::optional(time) : std::nullopt;
}

Result<KnownToken> readLine(const std::vector<std::string_view>& words) {
  if (words.size() != 3 && words.size() != 4) {
    return Error{ErrorCode::invalidArgument,
                 fmt::format("expected NAME ROLE sha256:HEX [expires=TIME], three or four words and not {}",
                             words.size())};
  }
  KnownToken token;
  PSD_RETURN_IF_ERROR(checkTokenName(words[0]));
  token.name = words[0];
  PSD_ASSIGN_OR_RETURN(token.role, parseRole(words[1]));
  // The word may be the token itself, by mistake: do not quote it.
  if (!words[2].starts_with(kHashName)) {
    return Error{ErrorCode::invalidArgument, "the third word is sha256:HEX, as `psd token new` prints it"};
  }
  PSD_ASSIGN_OR_RETURN(token.digest, sha256Of(words[2].substr(kHashName.size())));
  if (words.size() == 3) return token;
  token.expires =
      words[3].starts_with(kExpires) ? timeOf(std::string(words[3].substr(kExpires.size()))) : std::nullopt;
  if (!token.expires) {
    return Error{ErrorCode::invalidArgument,
                 "the fourth word is expires=TIME, a date in UTC as expires=2026-12-31T00:00:00Z"};
  }
  return token;
}

}  // namespace

std::string KnownToken::line() const {
  return fmt::format("{} {} {}{}{}", name, roleName(role), kHashName, hexOf(digest),
                     expires ? fmt::format(" {}{}", kExpires, utcText(*expires)) : "");
}

Status checkTokenName(std::string_view name) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("._@-").find(c) != std::string_view::npos;
  };
  if (!name.empty() && name.size() <= kNameBytesMax && std::ranges::all_of(name, fits)) return {};
  return {ErrorCode::invalidArgument,
          fmt::format("'{}' is not a name; expected letters, digits and . _ @ -, at most {}",
                      printable(name, 80), kNameBytesMax)};
}

namespace {

/// Reads the text of the token file at `path`.
Result<std::vector<KnownToken>> tokensIn(const std::string& text, const std::string& path) {
  std::vector<KnownToken> tokens;
  std::map<std::string, Role> roles;
  std::string_view rest = text;
  for (size_t number = 1; !rest.empty(); number++) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const auto words = wordsOf(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (words.empty() || words[0].starts_with('#')) continue;
    const auto failed = [&](const std::string& why) {
      return Error{ErrorCode::invalidArgument, fmt::format("{}, line {}: {}", path, number, why)};
    };
    const auto token = readLine(words);
    if (!token.ok()) return failed(token.message());
    const auto [known, isNew] = roles.emplace(token->name, token->role);
    if (known->second != token->role) {
      return failed(fmt::format("'{}' has role {} in an earlier line, and a name has one role", token->name,
                                roleName(known->second)));
    }
    if (tokens.size() == kTokensMax)
      return failed(fmt::format("a token file has at most {} tokens", kTokensMax));
    tokens.push_back(*token);
  }
  return tokens;
}

}  // namespace

Result<std::vector<KnownToken>> readTokenFile(const std::string& path) {
  PSD_ASSIGN_OR_RETURN(const std::string text,
                       readPrivateText(path, kFileBytesMax, kFileKind, /*orPipe=*/false));
  return tokensIn(text, path);
}

Status addToken(const std::string& path, const KnownToken& token) {
  const auto add = [&](std::string& text) -> Status {
    PSD_ASSIGN_OR_RETURN(const auto known, tokensIn(text, path));
    if (known.size() >= kTokensMax) {
      return {ErrorCode::invalidArgument,
              fmt::format("{}: has {} tokens already, which is the maximum; remove a line first", path,
                          known.size())};
    }
    for (const KnownToken& other : known) {
      if (other.name != token.name || other.role == token.role) continue;
      return {ErrorCode::invalidArgument,
              fmt::format("{}: '{}' has role {} there, and a name has one role; remove that line first", path,
                          token.name, roleName(other.role))};
    }
    if (!text.empty() && text.back() != '\n') text += '\n';
    text += token.line() + "\n";
    return {};
  };
  return editPrivateText(path, kFileBytesMax, kFileKind, IfMissing::create, add);
}

Result<size_t> removeTokens(const std::string& path, std::string_view name) {
  size_t removed = 0;
  const auto remove = [&](std::string& text) -> Status {
    PSD_RETURN_IF_ERROR(tokensIn(text, path).status());
    std::string kept;
    for (std::string_view rest = text; !rest.empty();) {
      const std::string_view line = rest.substr(0, std::min(rest.find('\n'), rest.size() - 1) + 1);
      rest.remove_prefix(line.size());
      const auto words = wordsOf(line.substr(0, line.find('\n')));
      const bool named = !words.empty() && words[0] == name;
      removed += named ? 1 : 0;
      if (!named) kept += line;
    }
    text = std::move(kept);
    return {};
  };
  PSD_RETURN_IF_ERROR(editPrivateText(path, kFileBytesMax, kFileKind, IfMissing::fail, remove));
  return removed;
}

Result<std::string> generateToken() {
  Sha256 random{};
  if (getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size())) {
    return Error{ErrorCode::io, std::string("cannot get random bytes: ") + std::strerror(errno)};
  }
  return std::string(kTokenPrefix) + hexOf(random);
}

}  // namespace psd
