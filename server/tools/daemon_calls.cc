#include "server/tools/daemon_calls.h"

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

#include "common/config/json_file.h"
#include "common/log/log.h"
#include "common/os/socket.h"
#include "common/text/text.h"
#include "server/client/admin_client.h"
#include "server/status/status_json.h"

namespace psd {
namespace {

using Json = nlohmann::ordered_json;

// Per address if there are several; a running daemon accepts sooner.
constexpr std::chrono::milliseconds kReachTimeout{5'000};

}  // namespace

Result<Address> reachableAddress(const DaemonCall& call) {
  if (const std::string warning = tokenInTheClear(call.credentials.token, call.servers); !warning.empty()) {
    std::fprintf(stderr, "psd: %s\n", oneLine(warning, kMessageBytesMax).c_str());
  }
  std::vector<Address> addresses;
  for (const std::string& server : call.servers) {
    PSD_ASSIGN_OR_RETURN(addresses.emplace_back(), parseAddress(server));
  }
  if (addresses.size() == 1) return addresses.front();
  std::vector<std::string> reasons;
  for (const Address& address : addresses) {
    const auto connected = connectTo(address, std::min(call.timeout, kReachTimeout));
    if (connected.ok()) return address;
    reasons.push_back(connected.message());
  }
  return Error{ErrorCode::unavailable, joined(reasons, "; ")};
}

Result<std::vector<DaemonCall>> allDaemons(const DaemonCall& call) {
  PSD_ASSIGN_OR_RETURN(const Address address, reachableAddress(call));
  PSD_ASSIGN_OR_RETURN(const auto daemons, fetchDaemons(address, call.timeout, call.credentials));
  if (daemons.empty()) return std::vector<DaemonCall>{call};
  std::vector<DaemonCall> all;
  for (const auto& servers : daemons) {
    if (address.tls && !tokenInTheClear(call.credentials.token, servers).empty()) {
      return Error{ErrorCode::invalidArgument,
                   joined(servers, ",") +
                       ": the token, which was sent over TLS so far, would be sent there unencrypted; "
                       "all addresses in `daemons` must be tls://, unix:// or of this machine"};
    }
    all.push_back({servers, call.timeout, call.credentials});
  }
  return all;
}

Result<std::vector<DaemonCall>> daemonsOf(const DaemonCall& call, bool here) {
  if (here) return std::vector<DaemonCall>{call};
  return allDaemons(call);
}

Result<Json> statusAt(const Address& address, const DaemonCall& call) {
  PSD_ASSIGN_OR_RETURN(const std::string text, fetchStatusJson(address, call.timeout, call.credentials));
  return parseJson(text, "the status of " + address.toString());
}

Result<DaemonStatus> readStatusAt(const Address& address, const DaemonCall& call) {
  PSD_ASSIGN_OR_RETURN(const Json document, statusAt(address, call));
  return readStatus(document, "the status of " + address.toString());
}

namespace {

/// The daemon's role in its replica set; "primary" if it has none.
Result<std::string> roleAt(const Address& address, const DaemonCall& call) {
  PSD_ASSIGN_OR_RETURN(const DaemonStatus status, readStatusAt(address, call));
  return status.replicaSet ? status.replicaSet->role : "primary";
}

}  // namespace

Result<Address> primaryAddress(const DaemonCall& call) {
  std::vector<std::string> reasons;
  ErrorCode code = ErrorCode::unavailable;
  for (const std::string& server : call.servers) {
    PSD_ASSIGN_OR_RETURN(const Address address, parseAddress(server));
    const Result<std::string> role = roleAt(address, call);
    if (role.ok() && *role == "primary") return address;
    if (!role.ok() && role.error().code == ErrorCode::deadlineExceeded) code = ErrorCode::deadlineExceeded;
    reasons.push_back(role.ok() ? server + ": " + *role : role.message());
  }
  return Error{code, joined(reasons, "; ")};
}

Result<Address> addressOf(const DaemonCall& call) {
  if (call.servers.size() == 1) return reachableAddress(call);
  Result<Address> serving = primaryAddress(call);
  return serving.ok() ? serving : reachableAddress(call);
}

Result<std::vector<Address>> allPrimaryAddresses(const DaemonCall& call) {
  PSD_ASSIGN_OR_RETURN(const std::vector<DaemonCall> daemons, allDaemons(call));
  std::vector<Address> addresses;
  for (size_t i = 0; i < daemons.size(); i++) {
    const Result<Address> address = daemons.size() == 1 ? addressOf(daemons[i]) : primaryAddress(daemons[i]);
    if (!address.ok()) {
      if (daemons.size() == 1) return address.error();
      return Error{address.error().code,
                   fmt::format("daemon {} of {} does not answer, so nothing was done: {}", i, daemons.size(),
                               address.message())};
    }
    addresses.push_back(*address);
  }
  return addresses;
}

Status changeAll(const DaemonCall& call, const std::function<Result<std::string>(const Address&)>& change,
                 const std::function<Status(const Address&)>& mayChange) {
  PSD_ASSIGN_OR_RETURN(const std::vector<Address> addresses, allPrimaryAddresses(call));
  const bool asksFirst = addresses.size() > 1 && mayChange;
  for (size_t i = 0; asksFirst && i < addresses.size(); i++) {
    const Status may = mayChange(addresses[i]);
    if (may.ok()) continue;
    return {may.error().code, fmt::format("daemon {} of {} would refuse it, so nothing was changed: {}", i,
                                          addresses.size(), may.message())};
  }
  for (size_t i = 0; i < addresses.size(); i++) {
    const Result<std::string> changed = change(addresses[i]);
    if (!changed.ok() && i > 0) {
      return {changed.error().code,
              fmt::format("{}; {} of {} daemons, those printed above, have changed already",
                          changed.message(), i, addresses.size())};
    }
    PSD_RETURN_IF_ERROR(changed.status());
    std::puts(changed->c_str());
  }
  return {};
}

Status withAdvice(Status outcome, const DaemonCall& call) {
  // A daemon that ends a connection is there: it need not see another.
  if (outcome.ok() || outcome.message().find(": cannot connect: ") == std::string::npos) return outcome;
  for (const std::string& server : call.servers) {
    const Result<Address> address = parseAddress(server);
    bool refused = false;
    if (!address.ok() || connectTo(*address, std::min(call.timeout, kReachTimeout), &refused).ok() ||
        !refused)
      return outcome;
  }
  return {outcome.error().code,
          outcome.message() +
              "; is psd running? 'psd --config FILE' starts it, and --server names another "
              "address"};
}

Result<Json> statusOf(const DaemonCall& call) {
  PSD_ASSIGN_OR_RETURN(const Address address, addressOf(call));
  return statusAt(address, call);
}

Result<DaemonStatus> readStatusOf(const DaemonCall& call) {
  PSD_ASSIGN_OR_RETURN(const Json document, statusOf(call));
  return readStatus(document, "the status of " + joined(call.servers, ","));
}

}  // namespace psd
