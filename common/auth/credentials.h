#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "common/status/status.h"

namespace psd {

inline constexpr size_t kTokenBytesMax = 1024;  ///< limit on a token's length

/// PEM files of a connecting TLS client; empty: not given. A value type.
struct TlsFiles {
  std::string ca;                ///< trusted certificate authority; empty: the system's
  std::string certificate, key;  ///< own identity; both or neither
};

/// What a program presents to a daemon. A value type.
struct Credentials {
  std::string token;  ///< empty: none. A secret.
  TlsFiles tls;
};

/// Values of flags or arguments; empty: not given.
struct CredentialFlags {
  std::optional<std::string> tokenFile, tlsCa, tlsCertificate, tlsKey;
  std::optional<std::string> token;  ///< of a program that holds it; never a flag, which others can see
  std::string tokenFileFlag = "--token-file";  ///< for errors
};

/// Reads the flags; a token flag overrides the environment's token. Falls back to PSD_TOKEN_FILE or
/// PSD_TOKEN, PSD_TLS_CA, PSD_TLS_CERT and PSD_TLS_KEY. Reads the token from its file: the first line that is
/// neither empty nor a comment (#). Errors name the flag or variable.
Result<Credentials> readCredentials(const CredentialFlags& flags,
                                    const std::function<const char*(const char*)>& environment);

/// One human-readable line if the token would cross the network unencrypted; else empty.
std::string tokenInTheClear(const std::string& token, std::span<const std::string> servers);

}  // namespace psd
