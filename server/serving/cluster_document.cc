#include "server/serving/cluster_document.h"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "common/types/model_spec.h"

namespace psd {
namespace {

constexpr std::string_view kReplicaSetPath = "groups[0].";  // in the document

Error invalidDocument(std::string path, std::string_view message) {
  return {ErrorCode::invalidArgument, std::move(path) + ": " + std::string(message)};
}

Status validateDaemons(const ClusterDocument& plan) {
  if (plan.daemons.size() > kDocumentDaemonsMax) {
    return invalidDocument("daemons", fmt::format("{} daemons; at most {} are allowed", plan.daemons.size(),
                                                  kDocumentDaemonsMax));
  }
  for (const auto& [id, addresses] : plan.daemons) {
    const std::string path = fmt::format("daemons.{:016x}", id.value);
    if (id.value == 0) return invalidDocument(path, "0 is not a daemon's number");
    if (addresses.empty() || addresses.size() > kDocumentAddressesMax) {
      return invalidDocument(
          path, fmt::format("{} addresses; a daemon has 1 to {}", addresses.size(), kDocumentAddressesMax));
    }
    for (size_t i = 0; i < addresses.size(); i++) {
      const Address& address = addresses[i];
      const bool canBeDialled =
          address.kind == Address::Kind::unixSocket || (address.port != 0 && address.host != "*");
      if (!canBeDialled)
        return invalidDocument(fmt::format("{}[{}]", path, i),
                               "'" + address.toString() + "' cannot be dialled");
    }
  }
  return {};
}

Status validateGroup(const ClusterDocument& plan) {
  const ReplicaSet& group = plan.group;
  const std::string path(kReplicaSetPath);
  if (group.term == 0) return invalidDocument(path + "epoch", "must be at least 1");
  if (group.history == 0) return invalidDocument(path + "history", "0 is not a history");
  if (!plan.daemons.contains(group.primary))
    return invalidDocument(path + "primary", "is not among the daemons");
  if (!group.standby) return {};
  if (*group.standby == group.primary) return invalidDocument(path + "standby", "is the primary itself");
  if (!plan.daemons.contains(*group.standby))
    return invalidDocument(path + "standby", "is not among the daemons");
  return {};
}

Status validateMove(const ClusterDocument& plan) {
  if (!plan.moved) return {};
  const auto& [move, to] = *plan.moved;
  if (!plan.ended) return invalidDocument("moved", "requires a run that is over (ended)");
  if (move == 0) return invalidDocument("moved.move", "0 is not a move");
  if (to.empty() || to.size() > kPartitionsMax) {
    return invalidDocument("moved.to",
                           fmt::format("{} daemons; 1 to {} are allowed", to.size(), kPartitionsMax));
  }
  for (size_t i = 0; i < to.size(); i++) {
    const std::string path = fmt::format("moved.to[{}]", i);
    if (to[i].empty() || to[i].size() > kDaemonAddressesMax) {
      return invalidDocument(
          path, fmt::format("{} addresses; a daemon has 1 to {}", to[i].size(), kDaemonAddressesMax));
    }
    for (const std::string& text : to[i]) {
      if (const auto address = parseAddress(text); !address.ok())
        return invalidDocument(path, address.message());
    }
  }
  return {};
}

/// Drops a daemon that is neither primary nor standby.
void forget(ClusterDocument& plan, DaemonId daemon) {
  if (plan.group.primary != daemon && plan.group.standby != daemon) plan.daemons.erase(daemon);
}

Result<ClusterDocument> checked(ClusterDocument plan) {
  PSD_RETURN_IF_ERROR(validateDocument(plan));
  return plan;
}

}  // namespace

Status validateDocument(const ClusterDocument& plan) {
  if (plan.proposal == 0) return invalidDocument("proposal", "0 is no proposal");
  if (plan.fromFolder() && (!plan.ended || plan.moved))
    return invalidDocument("from_folder_of", "requires a run that is over (ended), and has not moved");
  PSD_RETURN_IF_ERROR(validateDaemons(plan));
  PSD_RETURN_IF_ERROR(validateGroup(plan));
  return validateMove(plan);
}

Result<ClusterDocument> withPrimary(ClusterDocument plan, DaemonId daemon, uint64_t history,
                                    uint64_t proposal) {
  ReplicaSet& changed = plan.group;
  const std::string path(kReplicaSetPath);
  if (changed.primary == daemon) return invalidDocument(path + "primary", "is that daemon already");
  if (changed.history == history) return invalidDocument(path + "history", "a new primary needs a new one");
  const DaemonId primary = std::exchange(changed.primary, daemon);
  const std::optional<DaemonId> standby = std::exchange(changed.standby, std::nullopt);
  changed.term++;
  changed.history = history;
  plan.proposal = proposal;
  forget(plan, primary);
  if (standby) forget(plan, *standby);
  return checked(std::move(plan));
}

Result<ClusterDocument> withStandby(ClusterDocument plan, DaemonId daemon, std::vector<Address> addresses,
                                    uint64_t proposal) {
  if (plan.group.standby)
    return invalidDocument(std::string(kReplicaSetPath) + "standby", "there is one already");
  plan.group.standby = daemon;
  plan.daemons[daemon] = std::move(addresses);
  plan.proposal = proposal;
  return checked(std::move(plan));
}

Result<ClusterDocument> withMove(ClusterDocument plan, RecordedMove moved, uint64_t proposal) {
  if (plan.ended) return invalidDocument("ended", "the run is over already");
  plan.ended = true;
  plan.moved = std::move(moved);
  plan.proposal = proposal;
  return checked(std::move(plan));
}

Result<ClusterDocument> withoutStandby(ClusterDocument plan, uint64_t proposal) {
  const std::optional<DaemonId> standby = std::exchange(plan.group.standby, std::nullopt);
  if (!standby) return invalidDocument(std::string(kReplicaSetPath) + "standby", "there is none");
  plan.proposal = proposal;
  forget(plan, *standby);
  return checked(std::move(plan));
}

}  // namespace psd
