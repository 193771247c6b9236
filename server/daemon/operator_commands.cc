#include "server/daemon/operator_commands.h"

#include <algorithm>
#include <cstdio>

#include "common/config/json_file.h"
#include "common/os/env.h"
#include "common/os/socket.h"
#include "common/safetensors/safetensors.h"
#include "common/text/text.h"
#include "common/types/model_layout.h"
#include "server/rpc/admin_client.h"
#include "server/status/status_json.h"
#include "server/status/status_table.h"

namespace psd {
namespace {

// For one of several addresses; a daemon that is there accepts sooner.
constexpr std::chrono::milliseconds kReachTimeout{5'000};

}  // namespace

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

Status checkpointServer(const DaemonCall& call) {
  PSD_ASSIGN_OR_RETURN(const Address address, reachable(call));
  PSD_ASSIGN_OR_RETURN(const std::string path, takeCheckpoint(address, call.timeout, call.credentials));
  std::puts(path.c_str());
  return {};
}

Status switchServer(const DaemonCall& call) {
  PSD_ASSIGN_OR_RETURN(const Address address, reachable(call));
  PSD_RETURN_IF_ERROR(switchOver(address, call.timeout, call.credentials));
  std::printf("%s: its standby is the primary now\n", address.toString().c_str());
  return {};
}

Status recoverServer(const DaemonCall& call) {
  PSD_ASSIGN_OR_RETURN(const Address address, reachable(call));
  PSD_RETURN_IF_ERROR(recoverDaemon(address, call.timeout, call.credentials));
  std::printf("%s: takes the place of the primary\n", address.toString().c_str());
  return {};
}

Status removeTrainerOf(const DaemonCall& call, Rank rank) {
  PSD_ASSIGN_OR_RETURN(const Address address, reachable(call));
  PSD_ASSIGN_OR_RETURN(const std::string removed,
                       removeTrainer(address, rank, call.timeout, call.credentials));
  std::printf("%s: %s was removed\n", address.toString().c_str(), removed.c_str());
  return {};
}

Status setKeyOf(const DaemonCall& call, const std::string& assignment) {
  PSD_ASSIGN_OR_RETURN(const Address address, reachable(call));
  PSD_ASSIGN_OR_RETURN(const std::string change, setKey(address, assignment, call.timeout, call.credentials));
  std::printf("%s: %s\n", address.toString().c_str(), change.c_str());
  return {};
}

Status exportServer(Env& env, const DaemonCall& call, const std::string& to) {
  PSD_ASSIGN_OR_RETURN(const Address address, reachable(call));
  PSD_ASSIGN_OR_RETURN(const LiveModel model, fetchModel(address, call.timeout, call.credentials));
  if (model.spec.tensors.empty()) {
    return {
        ErrorCode::invalidArgument,
        address.toString() + ": model '" + model.spec.name +
            "' has embedding tables alone; psd export CHECKPOINT --table NAME --to FILE writes one of them"};
  }
  const auto places = ModelLayout(model.spec).places();
  PSD_RETURN_IF_ERROR(writeFileAtomically(env, to, [&](WritableFile& file) {
    return writeSafetensors(
        file, model.spec, {{"format", "pt"}, {"writer", "psd " PSD_VERSION}},
        [&](size_t index, const auto& sink) {
          return sink(std::span(model.values).subspan(places[index].begin, places[index].count));
        });
  }));
  std::printf("wrote model '%s' of %s to '%s'\n", model.spec.name.c_str(), address.toString().c_str(),
              to.c_str());
  return {};
}

Status stopServer(const DaemonCall& call) {
  PSD_ASSIGN_OR_RETURN(const Address address, reachable(call));
  PSD_RETURN_IF_ERROR(stopDaemon(address, "psd stop", call.timeout, call.credentials));
  std::printf("%s has stopped\n", address.toString().c_str());
  return {};
}

}  // namespace psd
