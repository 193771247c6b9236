#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "common/text/text.h"
#include "common/types/daemon_places.h"
#include "common/types/model_spec.h"
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

/// The addresses of daemons, by partition, that the daemon at `server` tells. ErrorCode::protocolMismatch
/// where they are more than there can be.
inline Result<DaemonPlaces> readPlaces(const std::string& server,
                                       capnp::List<capnp::List<capnp::Text>>::Reader in) {
  DaemonPlaces daemons;
  for (const auto addresses : in) {
    if (daemons.size() == kPartitionsMax || addresses.size() > kDaemonAddressesMax) {
      return Error{ErrorCode::protocolMismatch,
                   server + ": tells of more daemons than can serve a model together"};
    }
    auto& of = daemons.emplace_back();
    for (const auto address : addresses) of.push_back(printable(textIn(address)));
  }
  return daemons;
}

/// Writes what readPlaces() reads.
inline void writePlaces(const DaemonPlaces& daemons, capnp::List<capnp::List<capnp::Text>>::Builder out) {
  for (kj::uint i = 0; i < out.size(); i++) {
    auto list = out.init(i, static_cast<kj::uint>(daemons[i].size()));
    for (kj::uint k = 0; k < list.size(); k++) list.set(k, daemons[i][k].c_str());
  }
}

/// The addresses of each daemon that serves the model together with the one at `server`, by partition; none
/// where that one serves its model alone.
inline Result<DaemonPlaces> readDaemons(const std::string& server, schema::LoginResult::Reader answer) {
  return readPlaces(server, answer.getDaemons());
}

}  // namespace psd::wire
