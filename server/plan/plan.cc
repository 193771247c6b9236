#include "server/plan/plan.h"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "common/types/model_spec.h"

namespace psd {
namespace {

Error wrongPlan(std::string path, std::string_view message) {
  return {ErrorCode::invalidArgument, std::move(path) + ": " + std::string(message)};
}

Status validateDaemons(const Plan& plan) {
  if (plan.daemons.size() > kPlanDaemonsMax) {
    return wrongPlan("daemons",
                     fmt::format("{} daemons, at most {} can be", plan.daemons.size(), kPlanDaemonsMax));
  }
  for (const auto& [id, addresses] : plan.daemons) {
    const std::string path = fmt::format("daemons.{:016x}", id.value);
    if (id.value == 0) return wrongPlan(path, "0 is no daemon's number");
    if (addresses.empty() || addresses.size() > kPlanAddressesMax) {
      return wrongPlan(
          path, fmt::format("{} addresses; a daemon has 1 to {}", addresses.size(), kPlanAddressesMax));
    }
    for (size_t i = 0; i < addresses.size(); i++) {
      const Address& address = addresses[i];
      const bool canBeDialled =
          address.kind == Address::Kind::unixSocket || (address.port != 0 && address.host != "*");
      if (!canBeDialled)
        return wrongPlan(fmt::format("{}[{}]", path, i), "'" + address.toString() + "' cannot be dialled");
    }
  }
  return {};
}

Status validateGroup(const Plan& plan, size_t index) {
  const PlannedGroup& group = plan.groups[index];
  const std::string path = fmt::format("groups[{}].", index);
  if (group.epoch == 0) return wrongPlan(path + "epoch", "must be 1 at least");
  if (group.history == 0) return wrongPlan(path + "history", "0 is no history");
  if (!plan.daemons.contains(group.primary)) return wrongPlan(path + "primary", "is not among the daemons");
  if (!group.standby) return {};
  if (*group.standby == group.primary) return wrongPlan(path + "standby", "is the primary itself");
  if (!plan.daemons.contains(*group.standby)) return wrongPlan(path + "standby", "is not among the daemons");
  return {};
}

Status validateShards(const Plan& plan) {
  if (plan.model.has_value() == plan.shards.empty()) {
    return wrongPlan("shards", plan.model ? "a model has one at least" : "without a model there are none");
  }
  uint64_t total = 0;
  for (size_t i = 0; i < plan.shards.size(); i++) {
    const auto& [count, group] = plan.shards[i];
    const std::string path = fmt::format("shards[{}].", i);
    if (count == 0) return wrongPlan(path + "count", "must be 1 at least");
    if (group >= plan.groups.size()) {
      return wrongPlan(path + "group",
                       fmt::format("there is no group {} ({} groups)", group, plan.groups.size()));
    }
    total += count;
  }
  if (total > kPlanShardsMax) {
    return wrongPlan("shards", fmt::format("{} shards, at most {} can be", total, kPlanShardsMax));
  }
  return {};
}

Status validateMove(const Plan& plan) {
  if (!plan.moved) return {};
  const auto& [move, to] = *plan.moved;
  if (!plan.ended) return wrongPlan("moved", "goes with a run that is over (ended)");
  if (move == 0) return wrongPlan("moved.move", "0 is no move");
  if (to.empty() || to.size() > kPartitionsMax) {
    return wrongPlan("moved.to", fmt::format("{} daemons; there are 1 to {}", to.size(), kPartitionsMax));
  }
  for (size_t i = 0; i < to.size(); i++) {
    const std::string path = fmt::format("moved.to[{}]", i);
    if (to[i].empty() || to[i].size() > kDaemonAddressesMax) {
      return wrongPlan(path,
                       fmt::format("{} addresses; a daemon has 1 to {}", to[i].size(), kDaemonAddressesMax));
    }
    for (const std::string& text : to[i]) {
      if (const auto address = parseAddress(text); !address.ok()) return wrongPlan(path, address.message());
    }
  }
  return {};
}

Status checkGroup(const Plan& plan, uint32_t group) {
  if (group < plan.groups.size()) return {};
  return wrongPlan(fmt::format("groups[{}]", group),
                   fmt::format("there are only {} groups", plan.groups.size()));
}

/// Drops a daemon that no group names.
void forget(Plan& plan, DaemonId daemon) {
  const auto names = [daemon](const PlannedGroup& group) {
    return group.primary == daemon || group.standby == daemon;
  };
  if (std::ranges::none_of(plan.groups, names)) plan.daemons.erase(daemon);
}

Result<Plan> checked(Plan plan) {
  PSD_RETURN_IF_ERROR(validatePlan(plan));
  return plan;
}

}  // namespace

Status validatePlan(const Plan& plan) {
  if (plan.proposal == 0) return wrongPlan("proposal", "0 is no proposal");
  if (plan.model && *plan.model == 0) return wrongPlan("model", "0 is no model's signature");
  if (plan.groups.empty() || plan.groups.size() > kPlanGroupsMax) {
    return wrongPlan("groups",
                     fmt::format("{} groups; there are 1 to {}", plan.groups.size(), kPlanGroupsMax));
  }
  PSD_RETURN_IF_ERROR(validateDaemons(plan));
  for (size_t i = 0; i < plan.groups.size(); i++) PSD_RETURN_IF_ERROR(validateGroup(plan, i));
  PSD_RETURN_IF_ERROR(validateMove(plan));
  return validateShards(plan);
}

std::optional<uint32_t> groupOfShard(const Plan& plan, ShardId shard) {
  uint64_t end = 0;
  for (const auto& [count, group] : plan.shards) {
    end += count;
    if (shard.value < end) return group;
  }
  return std::nullopt;
}

Result<Plan> withPrimary(Plan plan, uint32_t group, DaemonId daemon, uint64_t history, uint64_t proposal) {
  PSD_RETURN_IF_ERROR(checkGroup(plan, group));
  PlannedGroup& changed = plan.groups[group];
  const std::string path = fmt::format("groups[{}].", group);
  if (changed.primary == daemon) return wrongPlan(path + "primary", "is that daemon already");
  if (changed.history == history) return wrongPlan(path + "history", "a new primary begins a new one");
  const DaemonId primary = std::exchange(changed.primary, daemon);
  const std::optional<DaemonId> standby = std::exchange(changed.standby, std::nullopt);
  changed.epoch++;
  changed.history = history;
  plan.proposal = proposal;
  forget(plan, primary);
  if (standby) forget(plan, *standby);
  return checked(std::move(plan));
}

Result<Plan> withStandby(Plan plan, uint32_t group, DaemonId daemon, std::vector<Address> addresses,
                         uint64_t proposal) {
  PSD_RETURN_IF_ERROR(checkGroup(plan, group));
  PlannedGroup& changed = plan.groups[group];
  if (changed.standby) return wrongPlan(fmt::format("groups[{}].standby", group), "there is one already");
  changed.standby = daemon;
  plan.daemons[daemon] = std::move(addresses);
  plan.proposal = proposal;
  return checked(std::move(plan));
}

Result<Plan> withMove(Plan plan, PlannedMove moved, uint64_t proposal) {
  if (plan.ended) return wrongPlan("ended", "the run is over already");
  plan.ended = true;
  plan.moved = std::move(moved);
  plan.proposal = proposal;
  return checked(std::move(plan));
}

Result<Plan> withoutStandby(Plan plan, uint32_t group, uint64_t proposal) {
  PSD_RETURN_IF_ERROR(checkGroup(plan, group));
  const std::optional<DaemonId> standby = std::exchange(plan.groups[group].standby, std::nullopt);
  if (!standby) return wrongPlan(fmt::format("groups[{}].standby", group), "there is none");
  plan.proposal = proposal;
  forget(plan, *standby);
  return checked(std::move(plan));
}

}  // namespace psd
