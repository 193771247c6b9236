#include "server/daemon/operator_commands.h"

#include <algorithm>
#include <cstdio>

#include "common/config/json_file.h"
#include "common/os/socket.h"
#include "common/text/text.h"
#include "server/rpc/admin_client.h"
#include "server/status/status_json.h"
#include "server/status/status_table.h"

namespace psd {
namespace {

// For one of several addresses; a daemon that is there accepts sooner.
constexpr std::chrono::milliseconds kReachTimeout{5'000};

/// The address to call: the only one, or the first that can be connected to.
Result<Address> reachable(const DaemonCall& call) {
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

}  // namespace

void printConfig(const LoadedConfig& loaded) { std::puts(jsonText(loaded.effective, 2).c_str()); }

Status printStatus(const DaemonCall& call, bool json) {
  PSD_ASSIGN_OR_RETURN(const Address address, reachable(call));
  PSD_ASSIGN_OR_RETURN(const std::string text, fetchStatusJson(address, call.timeout, call.credentials));
  const std::string origin = "the status of " + address.toString();
  PSD_ASSIGN_OR_RETURN(const nlohmann::ordered_json document, parseJson(text, origin));
  if (json) {
    std::puts(jsonText(document, 2).c_str());  // as the daemon gave it, of whatever version that is
    return {};
  }
  PSD_ASSIGN_OR_RETURN(const DaemonStatus status, readStatus(document, origin));
  std::fputs(statusTable(status).c_str(), stdout);
  return {};
}

Status printHotRows(const DaemonCall& call, bool json) {
  PSD_ASSIGN_OR_RETURN(const Address address, reachable(call));
  PSD_ASSIGN_OR_RETURN(const std::string text, fetchHotRowsJson(address, call.timeout, call.credentials));
  const std::string origin = "the hot rows of " + address.toString();
  PSD_ASSIGN_OR_RETURN(const nlohmann::ordered_json document, parseJson(text, origin));
  if (json) {
    std::puts(jsonText(document, 2).c_str());
    return {};
  }
  PSD_ASSIGN_OR_RETURN(const HotRowsStatus rows, readHotRows(document, origin));
  std::fputs(hotRowsTable(rows).c_str(), stdout);
  return {};
}

Status reloadServer(const DaemonCall& call) {
  PSD_ASSIGN_OR_RETURN(const Address address, reachable(call));
  PSD_ASSIGN_OR_RETURN(const std::string change, reloadDaemon(address, call.timeout, call.credentials));
  std::printf("%s: %s\n", address.toString().c_str(), change.c_str());
  return {};
}

Status stopServer(const DaemonCall& call) {
  PSD_ASSIGN_OR_RETURN(const Address address, reachable(call));
  PSD_RETURN_IF_ERROR(stopDaemon(address, "psd stop", call.timeout, call.credentials));
  std::printf("%s has stopped\n", address.toString().c_str());
  return {};
}

}  // namespace psd
