#include "server/rpc/model_access.h"

#include "common/wire/convert.h"
#include "server/rpc/shared_memory_service.h"

namespace psd {
namespace {

/// What shared memory the peer may use, or why none.
void writeSharing(const ServedModel& model, Connection& connection, schema::ModelAccess::Builder out) {
  if (connection.passesDescriptors()) out.setRingBytesMax(connection.loop().config().limits.ringBytes);
  if (connection.passesDescriptors() && model.store->sharesDeviceMemory()) {
    auto devices = out.initDeviceOfShard(static_cast<kj::uint>(model.store->shardCount()));
    for (kj::uint i = 0; i < devices.size(); i++) {
      devices.set(i, static_cast<uint32_t>(model.store->shard(i).device()));
    }
  }
  if (!connection.passesDescriptors()) {
    out.setNotShared("the connection is no Unix socket");
    return;
  }
  for (const auto& policy : model.policies()) {
    if (policy->readsLive()) continue;
    const std::string name(policy->name());
    out.setNotShared(("policy " + name + " lets nobody read parameters while they change").c_str());
    return;
  }
  const auto arena = model.store->sharedArena();
  if (!arena) {
    out.setNotShared("the parameters do not lie in one sealed file in the daemon's memory");
    return;
  }
  auto shared = out.initSharedModel();
  shared.setMemory(kj::heap<SharedMemoryService>(connection.shared_from_this(), arena->file));
  shared.setValuesAt(arena->valuesAt);
  shared.setVersionsAt(arena->versionsAt);
  shared.setVersionStep(arena->versionStep);
  shared.setReadableAt(arena->readableAt);
}

}  // namespace

void writeAccess(const ServedModel& model, Connection& connection, schema::ModelAccess::Builder out) {
  const DaemonConfig& config = connection.loop().config();
  const ParameterStore& store = *model.store;
  wire::writePlan(store.plan(), out.initShards(static_cast<kj::uint>(store.shardCount())));
  out.setPolicy(describePolicies(config.groups).c_str());
  out.setDevice(store.describeDevices().c_str());
  out.setSliceElementsMax(config.limits.sliceBytes / sizeof(float));
  if (const LocalSteps& local = config.groups.back().policy.local; local.period != 0) {
    auto steps = out.initLocalSteps();
    steps.setPeriod(local.period);
    steps.setRate(local.rate);
    steps.setAlpha(local.alpha);
  }
  writeSharing(model, connection, out);
}

}  // namespace psd
