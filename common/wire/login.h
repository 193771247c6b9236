#pragma once

#include <string>
#include <string_view>

#include <fmt/format.h>

#include "common/text/text.h"
#include "common/wire/convert.h"

// What programs have in common that log in at a daemon.

namespace psd::wire {

/// `program` is what the caller calls itself, `token` what it shows; empty: none.
inline void writeLogin(std::string_view program, const std::string& token,
                       schema::Login::LoginParams::Builder out) {
  out.setProtocolVersion(kProtocolVersion);
  out.setPeer(std::string(program).c_str());
  if (!token.empty()) out.setToken(token.c_str());
}

/// What the exception begins with that calls of a caller end with that has lost its rights; the reason
/// follows.
inline constexpr const char* kRevoked = "revoked: ";

/// Why the daemon at `server` gave no capability for something: the role that it takes, and the one that the
/// caller has.
inline Error mayNot(const std::string& server, std::string_view needed, schema::LoginResult::Reader answer) {
  return {ErrorCode::forbidden,
          fmt::format("{}: this takes role {}; '{}' has role {}", server, needed,
                      printable(textIn(answer.getCaller()), 80), printable(textIn(answer.getRole()), 20))};
}

}  // namespace psd::wire
