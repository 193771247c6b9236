#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "common/status/status.h"

namespace psd {

inline constexpr size_t kTokenBytesMax = 1024;  ///< of a token

/// Files in PEM format for the end of a TLS connection that connects; empty: not given. A value type.
struct TlsFiles {
  std::string ca;                ///< whom to trust; empty: the system's certificate authorities
  std::string certificate, key;  ///< who this end is; both or neither
};

/// What a program shows a daemon. A value type.
struct Credentials {
  std::string token;  ///< empty: none. A secret.
  TlsFiles tls;
};

/// What flags or arguments say; nothing: not given.
struct CredentialFlags {
  std::optional<std::string> tokenFile, tlsCa, tlsCertificate, tlsKey;
  std::optional<std::string> token;            ///< of a program that has it; never a flag, which others see
  const char* tokenFileFlag = "--token-file";  ///< for errors
};

/// The flags, of which the token decides alone, else of the environment PSD_TOKEN_FILE or PSD_TOKEN,
/// PSD_TLS_CA, PSD_TLS_CERT and PSD_TLS_KEY. Reads the file of the token: its first line that is neither
/// empty nor a comment (#). Errors name flag or variable.
Result<Credentials> readCredentials(const CredentialFlags& flags,
                                    const std::function<const char*(const char*)>& environment);

/// One line for people where the token goes over the network in the clear; else empty.
std::string tokenInTheClear(const std::string& token, std::span<const std::string> servers);

}  // namespace psd
