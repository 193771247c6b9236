#include "server/tools/move_command.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "common/text/quantity.h"
#include "common/text/text.h"
#include "server/client/move_client.h"

namespace psd {
namespace {

constexpr double kSameStartSeconds = 5;  // tolerance for the time that answers take

void print(const char* what, const std::string& line) { std::printf("%-10s %s\n", what, line.c_str()); }

std::string described(const std::vector<Address>& daemons) {
  return fmt::format("{} daemon{}: {}", daemons.size(), daemons.size() == 1 ? "" : "s",
                     joined(daemons, " ", [](const Address& address) { return address.toString(); }));
}

/// The address to call for each partition, the primary's if there is a standby. Queries every daemon, even
/// those that have no model yet.
Result<std::vector<Address>> addressesOf(const DaemonCall& call) {
  PSD_ASSIGN_OR_RETURN(const std::vector<DaemonCall> daemons, allDaemons(call));
  std::vector<Address> addresses;
  for (const DaemonCall& daemon : daemons) {
    PSD_ASSIGN_OR_RETURN(addresses.emplace_back(), addressOf(daemon));
  }
  return addresses;
}

/// Whether the daemon serves a model that moved there from one of the addresses `old`.
bool hasModelFrom(const std::set<std::string>& old, const Result<DaemonStatus>& status) {
  return status.ok() && status->state == "serving" &&
         std::ranges::any_of(status->movedFrom, [&](const auto& from) { return old.contains(from); });
}

/// The source daemons do not answer: checks whether their model has already moved to the target daemons.
Status checkAlreadyMoved(const DaemonCall& before, const DaemonCall& call, const Error& away) {
  std::set<std::string> old;
  for (const std::string& server : before.servers) {
    PSD_ASSIGN_OR_RETURN(const Address address, parseAddress(server));
    old.insert(address.toString());
  }
  const auto addresses = addressesOf(call);
  const bool there = addresses.ok() && std::ranges::all_of(*addresses, [&](const Address& address) {
                       return hasModelFrom(old, readStatusAt(address, call));
                     });
  if (there) {
    print("done", "the model has moved already: it is at " + described(*addresses));
    return {};
  }
  if (!addresses.ok()) return {away.code, away.message + "; nothing was done"};
  return {away.code,
          fmt::format(
              "{}; nothing was done, and {} not known to have the model from there", away.message,
              addresses->size() == 1 ? addresses->front().toString() + " is" : "the daemons of --to are")};
}

/// A daemon's status, and when it was received.
struct TimedStatus {
  Result<DaemonStatus> status;
  std::chrono::steady_clock::time_point at;
};

/// Whether both come from the same process.
bool sameProcess(const TimedStatus& one, const TimedStatus& other) {
  if (!one.status.ok() || !other.status.ok()) return false;
  const DaemonStatus &first = *one.status, &second = *other.status;
  const double between = std::chrono::duration<double>(other.at - one.at).count();
  // Containers may share host name and PID.
  return first.host == second.host && first.pid == second.pid && first.addresses == second.addresses &&
         std::abs(second.uptimeSeconds - first.uptimeSeconds - between) < kSameStartSeconds;
}

/// Checks that the addresses given for one daemon and its standby belong to different daemons, as far as they
/// answer.
Status checkDiffer(const std::vector<std::string>& servers, const DaemonCall& call) {
  std::vector<std::pair<std::string, TimedStatus>> seen;
  for (const std::string& server : servers) {
    PSD_ASSIGN_OR_RETURN(const Address address, parseAddress(server));
    const std::string name = address.toString();
    auto status = servers.size() > 1 ? readStatusAt(address, call) : Error{ErrorCode::notReady, "not asked"};
    TimedStatus told{std::move(status), std::chrono::steady_clock::now()};
    for (const auto& [before, of] : seen) {
      if (before == name) return {ErrorCode::invalidArgument, "--to: " + name + " is given twice"};
      if (sameProcess(of, told)) {
        return {ErrorCode::invalidArgument,
                fmt::format("--to: {} and {} are the same daemon; give it once, or an address of each "
                            "replica",
                            before, name)};
      }
    }
    seen.emplace_back(name, std::move(told));
  }
  return {};
}

/// If the model moves to a single replica set: adds the addresses of its other replicas, so that trainers
/// know both.
void addOthers(const DaemonStatus& status, std::vector<std::string>& servers) {
  if (!status.replicaSet || status.state == kStateMoved) return;
  for (const std::string& other : status.replicaSet->others) {
    if (std::ranges::find(servers, other) == servers.end()) servers.push_back(other);
  }
  if (servers.size() > 1) return;
  print("note", servers.front() +
                    ": it has no standby yet; trainers will not find one that is started "
                    "later, unless --to names both addresses, separated by a comma");
}

}  // namespace

Status moveServer(const DaemonCall& call, const std::vector<std::string>& to,
                  std::chrono::milliseconds patience) {
  MoveOrder order;
  DaemonCall others = call;
  others.servers = to;
  auto from = addressesOf(call);
  if (!from.ok() && from.error().code == ErrorCode::unavailable)
    return checkAlreadyMoved(call, others, from.error());
  PSD_RETURN_IF_ERROR(from.status());
  order.from = *std::move(from);
  PSD_RETURN_IF_ERROR(checkDiffer(to, others));
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
  if (order.to.size() == 1) {
    const auto status = readStatusAt(order.to.front(), others);
    if (status.ok()) addOthers(*status, order.toServers);
  }
  PSD_ASSIGN_OR_RETURN(const MoveReport report, moveModel(order));
  if (report.before) {
    print("done", "the model had moved there already; the new daemons have been notified");
    return {};
  }
  if (report.versions > 0) {
    print("copied",
          fmt::format("{} published version{}; the copy before the quiesce took {}", report.versions,
                      report.versions == 1 ? "" : "s", durationText(report.versionSeconds)));
  }
  print("quiesced", fmt::format("{} trainer{}, after {}", report.trainers, report.trainers == 1 ? "" : "s",
                                durationText(report.quiesceSeconds)));
  print("moved", fmt::format("{} parameters{}, in {}", report.parameters,
                             report.rows == 0 ? "" : fmt::format(" and {} rows", report.rows),
                             durationText(report.transferSeconds)));
  for (const std::string& note : report.notes) print("note", note);
  print("done", "trainers continue at the new daemons, and the old ones end");
  return {};
}

}  // namespace psd
