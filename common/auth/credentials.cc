#include "common/auth/credentials.h"

#include <algorithm>
#include <string_view>

#include "common/os/address.h"
#include "common/os/private_file.h"
#include "common/text/text.h"

namespace psd {
namespace {

constexpr uint64_t kTokenFileBytesMax = 64u << 10;

using Getter = std::function<const char*(const char*)>;

/// A value and where it was given.
struct SourcedValue {
  std::string source, text;
};

/// The flag, else the environment variable; an empty variable counts as unset.
std::optional<SourcedValue> lookUp(const std::string& flag, const std::optional<std::string>& value,
                                   const char* variable, const Getter& environment) {
  if (value) return SourcedValue{flag, *value};
  const char* text = environment(variable);
  if (text == nullptr || *text == '\0') return {};
  return SourcedValue{variable, text};
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

Result<std::string> checkToken(const std::string& source, std::string_view token) {
  const auto visible = [](char c) { return c > ' ' && c <= '~'; };
  if (token.size() <= kTokenBytesMax && std::ranges::all_of(token, visible)) return std::string(token);
  return Error{ErrorCode::invalidArgument, source + ": not a valid token: a token has at most " +
                                               std::to_string(kTokenBytesMax) +
                                               " visible characters; `psd token new` creates one"};
}

Result<std::string> readTokenFile(const SourcedValue& file) {
  const auto failed = [&](const std::string& why) {
    return Error{ErrorCode::invalidArgument, file.source + ": " + why};
  };
  auto text = readPrivateText(file.text, kTokenFileBytesMax, "the file of one token", /*orPipe=*/true);
  if (!text.ok()) return failed(text.message());
  std::string_view rest = *text;
  while (!rest.empty()) {
    const size_t end = rest.find('\n');
    const std::string_view line = trimmed(rest.substr(0, end));
    if (!line.empty() && !line.starts_with('#')) return checkToken(file.source + ": " + file.text, line);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
  return failed(file.text + ": holds no token");
}

Result<std::string> readToken(const CredentialFlags& flags, const Getter& environment) {
  if (flags.token) {
    if (!flags.tokenFile) return checkToken("token", *flags.token);
    return Error{ErrorCode::invalidArgument, "token and token_file are both given; give only one"};
  }
  if (const auto file = lookUp(flags.tokenFileFlag, flags.tokenFile, "PSD_TOKEN_FILE", environment)) {
    return readTokenFile(*file);
  }
  const char* token = environment("PSD_TOKEN");
  return token == nullptr ? std::string() : checkToken("PSD_TOKEN", trimmed(token));
}

}  // namespace

Result<Credentials> readCredentials(const CredentialFlags& flags, const Getter& environment) {
  Credentials credentials;
  PSD_ASSIGN_OR_RETURN(credentials.token, readToken(flags, environment));
  const auto file = [&](const char* flag, const std::optional<std::string>& value, const char* variable) {
    const auto found = lookUp(flag, value, variable, environment);
    return found ? found->text : std::string();
  };
  credentials.tls.ca = file("--tls-ca", flags.tlsCa, "PSD_TLS_CA");
  credentials.tls.certificate = file("--tls-cert", flags.tlsCertificate, "PSD_TLS_CERT");
  credentials.tls.key = file("--tls-key", flags.tlsKey, "PSD_TLS_KEY");
  if (credentials.tls.certificate.empty() != credentials.tls.key.empty()) {
    return Error{ErrorCode::invalidArgument,
                 "--tls-cert and --tls-key (PSD_TLS_CERT, PSD_TLS_KEY) go together; give "
                 "both or neither"};
  }
  return credentials;
}

std::string tokenInTheClear(const std::string& token, std::span<const std::string> servers) {
  if (token.empty()) return "";
  for (const std::string& server : servers) {
    const auto address = parseAddress(server);
    if (!address.ok() || address->tls || isLocal(*address)) continue;
    return "the token goes to " + server +
           " in the clear: anyone who can read the network traffic can use it; tls:// encrypts it";
  }
  return "";
}

}  // namespace psd
