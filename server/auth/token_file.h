#pragma once

#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/crypto/sha256.h"
#include "common/status/status.h"
#include "server/auth/role.h"

namespace psd {

/// A token known to a daemon, only as a hash. A value type.
struct KnownToken {
  std::string name;  ///< of its holder
  Role role = Role::reader;
  Sha256 digest{};                       ///< of the token's characters
  std::optional<std::time_t> expires{};  ///< when it stops being valid; empty: never

  bool expired(std::time_t now) const { return expires && now >= *expires; }
  /// As a line of a token file: "NAME ROLE sha256:HEX", and "expires=2026-12-31T00:00:00Z" if it does.
  std::string line() const;
};

/// Checks a name: letters, digits and . _ @ -, at most 64.
Status checkTokenName(std::string_view name);

/// Every login compares with all of them.
inline constexpr size_t kTokensMax = 10'000;

/// Reads a token file: lines of KnownToken::line(), empty lines, and comments that start with #. A name may
/// have several tokens, all with the same role. Errors name the path and the line; ErrorCode::io also if
/// group or others have access to the file.
Result<std::vector<KnownToken>> readTokenFile(const std::string& path);

/// Appends the line of a token, and creates a missing file. Fails if a daemon would reject the file then.
Status addToken(const std::string& path, const KnownToken& token);

/// Removes the lines of the tokens with that name; the rest of the file stays as it is. Returns their number.
Result<size_t> removeTokens(const std::string& path, std::string_view name);

/// A new random token.
Result<std::string> generateToken();

}  // namespace psd
