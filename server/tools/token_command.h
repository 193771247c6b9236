#pragma once

#include <optional>
#include <string>

#include "common/status/status.h"

namespace psd {

/// `psd token new`: prints a new token, which is stored nowhere, to standard output, and its line for a token
/// file to standard error. If `file` is not empty, appends the line to that file instead, and creates it if
/// it does not exist. `expires`: the token's lifetime, "30d".
Status newToken(const std::string& name, const std::string& role, const std::string& file,
                const std::optional<std::string>& expires);

/// `psd token list`: prints names, roles and expiry of the tokens in `file` to standard output.
Status listTokens(const std::string& file);

/// `psd token revoke`: removes the tokens with that name from `file`. A running daemon knows them until it
/// reloads.
Status revokeTokens(const std::string& file, const std::string& name);

}  // namespace psd
