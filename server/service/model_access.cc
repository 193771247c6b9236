#include "server/service/model_access.h"

#include <spdlog/fmt/fmt.h>

#include "server/optimizer/optimizer_config.h"

namespace psd {

namespace {

/// The configured groups that have no block of the model; the last one only if it is a fragment, which must
/// have some.
std::vector<uint32_t> groupsWithout(const ParameterStore& store, const std::vector<GroupConfig>& groups) {
  std::vector<bool> taken(groups.size());
  for (size_t i = 0; i < store.blockCount(); i++) taken[store.block(i).group()] = true;
  std::vector<uint32_t> empty;
  const size_t needed = groups.back().fragment ? groups.size() : groups.size() - 1;
  for (uint32_t i = 0; i < needed; i++) {
    if (!taken[i]) empty.push_back(i);
  }
  return empty;
}

/// The optimizer of trainers' gradients in the last group, as JSON; empty where they take local steps.
std::string optimizerOf(const ServedModel& model, const DaemonConfig& config) {
  if (config.groups.back().policy.plan.local) return "";
  return writeOptimizer(model.store->optimizer(static_cast<uint32_t>(config.groups.size() - 1))).dump();
}

}  // namespace

ModelAccess accessTo(const ServedModel& model, const DaemonConfig& config) {
  return {.policy = describePolicies(config.groups),
          .device = model.store->describeDevices(),
          .sliceElementsMax = config.limits.sliceBytes / sizeof(float),
          .outgoingBytes = config.limits.outgoingBytes,
          .local = config.groups.back().policy.local,
          .optimizer = optimizerOf(model, config),
          .takesHyperparameters = takesTrainersOptimizer(config.groups),
          .allReduce = allReduceOf(config.groups),
          .rules = config.daemons.rules,
          .emptyGroups = groupsWithout(*model.store, config.groups)};
}

SharingTerms sharingOf(const ServedModel& model, const DaemonConfig& config) {
  const ParameterStore& store = *model.store;
  SharingTerms terms{.ringBytesMax = config.limits.ringBytes};
  for (size_t i = 0; store.sharesDeviceMemory() && i < store.shardCount(); i++) {
    terms.deviceOfShard.push_back(static_cast<uint32_t>(store.shard(i).device()));
  }
  if (!store.model().isFloat32()) {
    terms.notShared = "a tensor is not float32, as the daemon's parameters are";
    return terms;
  }
  for (const auto& policy : model.policies()) {
    if (!policy->properties().appliesSlices) terms.appliesSlices = false;
    if (policy->properties().readsLive) continue;
    terms.notShared = fmt::format("policy {} forbids reading parameters while they change", policy->name());
    return terms;
  }
  terms.arena = store.sharedArena();
  if (!terms.arena) terms.notShared = "the parameters are not in one sealed memory file of the daemon";
  return terms;
}

}  // namespace psd
