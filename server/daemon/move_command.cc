#include "server/daemon/move_command.h"

#include <cstdio>

#include <fmt/format.h>

#include "common/text/quantity.h"
#include "common/text/text.h"
#include "server/rpc/move_client.h"

namespace psd {
namespace {

void print(const char* what, const std::string& line) { std::printf("%-10s %s\n", what, line.c_str()); }

std::string described(const std::vector<Address>& daemons) {
  return fmt::format("{} daemon{}: {}", daemons.size(), daemons.size() == 1 ? "" : "s",
                     joined(daemons, " ", [](const Address& address) { return address.toString(); }));
}

/// Of each daemon the address to call, of a pair that of its primary; every one is asked, also where a daemon
/// has none to serve yet.
Result<std::vector<Address>> addressesOf(const DaemonCall& call) {
  PSD_ASSIGN_OR_RETURN(const std::vector<DaemonCall> daemons, allDaemons(call));
  std::vector<Address> addresses;
  for (const DaemonCall& daemon : daemons) {
    PSD_ASSIGN_OR_RETURN(addresses.emplace_back(), addressOf(daemon));
  }
  return addresses;
}

}  // namespace

Status moveServer(const DaemonCall& call, const std::vector<std::string>& to,
                  std::chrono::milliseconds patience) {
  MoveOrder order;
  PSD_ASSIGN_OR_RETURN(order.from, addressesOf(call));
  DaemonCall others = call;
  others.servers = to;
  PSD_ASSIGN_OR_RETURN(order.to, addressesOf(others));
  for (const std::string& server : to) {
    PSD_ASSIGN_OR_RETURN(const Address address, parseAddress(server));
    order.toServers.push_back(address.toString());
  }
  order.patience = patience;
  order.timeout = call.timeout;
  order.credentials = call.credentials;
  print("from", described(order.from));
  print("to", described(order.to));
  PSD_ASSIGN_OR_RETURN(const MoveReport report, moveModel(order));
  if (report.before) {
    print("done", "the model had moved there already; the new daemons know it now");
    return {};
  }
  print("aside", fmt::format("{} trainer{}, after {}", report.trainers, report.trainers == 1 ? "" : "s",
                             durationText(report.asideSeconds)));
  print("moved", fmt::format("{} parameters{}, in {}", report.parameters,
                             report.rows == 0 ? "" : fmt::format(" and {} rows", report.rows),
                             durationText(report.travelSeconds)));
  for (const std::string& note : report.notes) print("note", note);
  print("done", "trainers go on at the new daemons, and the old ones end");
  return {};
}

}  // namespace psd
