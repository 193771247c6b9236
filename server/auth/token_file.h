#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/crypto/sha256.h"
#include "common/status/status.h"
#include "server/auth/role.h"

namespace psd {

/// One token that a daemon knows, by its hash alone. A value type.
struct KnownToken {
  std::string name;  ///< of whoever has it
  Role role = Role::reader;
  Sha256 digest{};  ///< of the token's characters

  /// As a line of a token file: "NAME ROLE sha256:HEX".
  std::string line() const;
};

/// Whether it can be a name: letters, digits and . _ @ -, at most 64.
Status checkTokenName(std::string_view name);

/// Each login looks at all of them.
inline constexpr size_t kTokensMax = 10'000;

/// Reads a token file: lines of KnownToken::line(), empty ones and comments that begin with #. A name may
/// have several tokens, all of one role. Errors name the path and the line; ErrorCode::io also where group or
/// others may use it.
Result<std::vector<KnownToken>> readTokenFile(const std::string& path);

/// A token that nobody has yet.
Result<std::string> drawToken();

}  // namespace psd
