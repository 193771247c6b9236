#include "server/service/model_access.h"

#include <spdlog/fmt/fmt.h>

namespace psd {

namespace {

/// The groups of the configuration, but for the last, that have no block of the model.
std::vector<uint32_t> groupsWithout(const ParameterStore& store, size_t groups) {
  std::vector<bool> taken(groups);
  for (size_t i = 0; i < store.blockCount(); i++) taken[store.block(i).group()] = true;
  std::vector<uint32_t> empty;
  for (uint32_t i = 0; i + 1 < groups; i++) {
    if (!taken[i]) empty.push_back(i);
  }
  return empty;
}

}  // namespace

ModelAccess accessTo(const ServedModel& model, const DaemonConfig& config) {
  return {.policy = describePolicies(config.groups),
          .device = model.store->describeDevices(),
          .sliceElementsMax = config.limits.sliceBytes / sizeof(float),
          .local = config.groups.back().policy.local,
          .allReduce = allReduceOf(config.groups),
          .rules = config.daemons.rules,
          .emptyGroups = groupsWithout(*model.store, config.groups.size())};
}

SharingTerms sharingOf(const ServedModel& model, const DaemonConfig& config) {
  const ParameterStore& store = *model.store;
  SharingTerms terms{.ringBytesMax = config.limits.ringBytes};
  for (size_t i = 0; store.sharesDeviceMemory() && i < store.shardCount(); i++) {
    terms.deviceOfShard.push_back(static_cast<uint32_t>(store.shard(i).device()));
  }
  for (const auto& policy : model.policies()) {
    if (policy->readsLive()) continue;
    terms.notShared = fmt::format("policy {} lets nobody read parameters while they change", policy->name());
    return terms;
  }
  terms.arena = store.sharedArena();
  if (!terms.arena) terms.notShared = "the parameters do not lie in one sealed file in the daemon's memory";
  return terms;
}

}  // namespace psd
