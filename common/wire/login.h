#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "common/text/text.h"
#include "common/types/daemon_addresses.h"
#include "common/types/model_spec.h"
#include "common/wire/convert.h"

// Shared by all programs that log in at a daemon.

namespace psd::wire {

/// `program` is the caller's name, `token` its credential; empty: none.
inline void writeLogin(std::string_view program, const std::string& token,
                       schema::Login::LoginParams::Builder out) {
  out.setProtocolVersion(kProtocolVersion);
  out.setPeer(std::string(program).c_str());
  if (!token.empty()) out.setToken(token.c_str());
}

/// Prefix of the exception with which calls of a caller that has lost its rights fail; the reason follows.
inline constexpr const char* kRevoked = "revoked: ";
/// Prefix of the exception that rejects a call (overloaded) whose result has no status field.
inline constexpr const char* kRefused = "overloaded: ";

/// Why the daemon at `server` granted no capability: the role that it requires, and the caller's role.
inline Error forbiddenError(const std::string& server, std::string_view needed,
                            schema::LoginResult::Reader answer) {
  return {ErrorCode::forbidden,
          fmt::format("{}: this requires role {}; '{}' has role {}", server, needed,
                      printable(textIn(answer.getCaller()), 80), printable(textIn(answer.getRole()), 20))};
}

/// The addresses of daemons, by partition, in an answer of the daemon at `server`.
/// ErrorCode::protocolMismatch if they exceed the limits.
inline Result<DaemonAddresses> readDaemonAddresses(const std::string& server,
                                                   capnp::List<capnp::List<capnp::Text>>::Reader in) {
  DaemonAddresses daemons;
  for (const auto addresses : in) {
    if (daemons.size() == kPartitionsMax || addresses.size() > kDaemonAddressesMax) {
      return Error{ErrorCode::protocolMismatch,
                   server + ": lists more daemons or addresses than a model can have"};
    }
    auto& of = daemons.emplace_back();
    for (const auto address : addresses) of.push_back(printable(textIn(address)));
  }
  return daemons;
}

/// Writes the list that readDaemonAddresses() reads.
inline void writeDaemonAddresses(const DaemonAddresses& daemons,
                                 capnp::List<capnp::List<capnp::Text>>::Builder out) {
  for (kj::uint i = 0; i < out.size(); i++) {
    auto list = out.init(i, static_cast<kj::uint>(daemons[i].size()));
    for (kj::uint k = 0; k < list.size(); k++) list.set(k, daemons[i][k].c_str());
  }
}

/// The addresses of each daemon that serves the model together with the one at `server`, by partition; empty
/// if that one serves the whole model.
inline Result<DaemonAddresses> readDaemons(const std::string& server, schema::LoginResult::Reader answer) {
  return readDaemonAddresses(server, answer.getDaemons());
}

}  // namespace psd::wire
