#include "server/rpc/model_access.h"

#include "common/wire/convert.h"
#include "server/rpc/shared_memory_service.h"
#include "server/service/model_access.h"

namespace psd {
namespace {

/// Writes the shared memory that the peer may use, or why it may not.
void writeSharing(const ServedModel& model, Connection& connection, schema::ModelAccess::Builder out) {
  if (!connection.passesDescriptors()) {
    out.setNotShared("the connection is not a Unix socket");
    return;
  }
  const SharingTerms terms = sharingOf(model, connection.loop().config());
  out.setRingBytesMax(terms.ringBytesMax);
  if (!terms.deviceOfShard.empty()) {
    out.setDeviceOfShard(kj::arrayPtr(terms.deviceOfShard.data(), terms.deviceOfShard.size()));
  }
  if (!terms.arena) {
    out.setNotShared(terms.notShared.c_str());
    return;
  }
  auto shared = out.initSharedModel();
  shared.setMemory(kj::heap<SharedMemoryService>(connection.shared_from_this(), terms.arena->file));
  shared.setValuesAt(terms.arena->valuesAt);
  shared.setVersionsAt(terms.arena->versionsAt);
  shared.setVersionStep(terms.arena->versionStep);
  shared.setReadableAt(terms.arena->readableAt);
  shared.setAppliesSlices(terms.appliesSlices);
}

void writeInner(const InnerOptimizer& inner, schema::InnerOptimizer::Builder out) {
  using Type = schema::InnerOptimizer::Type;
  switch (inner.type) {
    case InnerOptimizer::Type::sgd: out.setType(Type::SGD); break;
    case InnerOptimizer::Type::adam: out.setType(Type::ADAM); break;
    case InnerOptimizer::Type::adamw: out.setType(Type::ADAMW); break;
  }
  out.setRate(inner.rate);
  out.setWeightDecay(inner.weightDecay);
  out.setMomentum(inner.momentum);
  out.setNesterov(inner.nesterov);
  out.setBeta1(inner.betas[0]);
  out.setBeta2(inner.betas[1]);
  out.setEps(inner.eps);
  out.setWarmupSteps(inner.warmupSteps);
  out.setTotalSteps(inner.totalSteps);
  out.setRateMin(inner.rateMin);
}

uint64_t tensorBytes(const std::vector<TensorSpec>& tensors) {
  uint64_t bytes = 0;
  for (const TensorSpec& tensor : tensors) bytes += 56 + tensor.name.size() + 8 * tensor.shape.size();
  return bytes;
}

}  // namespace

uint64_t accessBytes(const ServedModel& model) {
  const ParameterStore& store = *model.store;
  uint64_t bytes = 8192 + uint64_t{24} * store.shardCount();  // range, device and fragment of each shard
  for (size_t i = 0; i < store.rowShardCount(); i++) bytes += 32 + 4 * store.rowShard(i).tables().size();
  return bytes;
}

uint64_t modelBytes(const ModelSpec& model) {
  uint64_t bytes = 1024 + tensorBytes(model.tensors) + (model.whole ? tensorBytes(*model.whole) : 0);
  for (const TableSpec& table : model.tables) bytes += 80 + table.name.size();
  return bytes;
}

void writeAccess(const ServedModel& model, Connection& connection, schema::ModelAccess::Builder out) {
  const ParameterStore& store = *model.store;
  const ModelAccess access = accessTo(model, connection.loop().config());
  wire::writePlan(store.plan(), out.initShards(static_cast<kj::uint>(store.shardCount())));
  auto rowShards = out.initRowShards(static_cast<kj::uint>(store.rowShardCount()));
  for (kj::uint i = 0; i < rowShards.size(); i++) {
    const RowShard& shard = store.rowShard(i);
    rowShards[i].setHashFirst(shard.hashes().first);
    rowShards[i].setHashLast(shard.hashes().last);
    auto tables = rowShards[i].initTables(static_cast<kj::uint>(shard.tables().size()));
    for (kj::uint t = 0; t < tables.size(); t++) tables.set(t, shard.tables()[t].index);
  }
  out.setPolicy(access.policy.c_str());
  out.setDevice(access.device.c_str());
  out.setSliceElementsMax(access.sliceElementsMax);
  out.setOutgoingBytes(access.outgoingBytes);
  out.setOptimizer(access.optimizer.c_str());
  out.setTakesHyperparameters(access.takesHyperparameters);
  out.setRestoresState(true);
  out.setTakesSparse(true);
  if (access.local.period != 0) {
    auto steps = out.initLocalSteps();
    steps.setPeriod(access.local.period);
    steps.setRate(access.local.rate);
    steps.setAlpha(access.local.alpha);
    if (access.local.inner) writeInner(*access.local.inner, steps.initInner());
    steps.setEndsEarly(access.local.endsEarly);
    steps.setFragments(access.local.fragments);
    steps.setFragmentPerGroup(access.local.fragmentPerGroup);
    steps.setDelay(access.local.delay);
    steps.setBlend(access.local.blend);
    steps.setUpdatesPerRound(access.local.updatesPerRound);
    if (!access.local.deltas.empty()) steps.setDeltas(access.local.deltas.c_str());
  }
  if (access.local.fragments > 1) {
    auto fragments = out.initFragmentOfShard(static_cast<kj::uint>(store.shardCount()));
    for (kj::uint i = 0; i < fragments.size(); i++) fragments.set(i, store.shard(i).range().group);
  }
  if (access.allReduce) {
    auto terms = out.initAllReduce();
    terms.setTimeoutMs(static_cast<uint64_t>(access.allReduce->timeout.count()));
    terms.setBucketBytes(access.allReduce->bucketBytes);
  }
  out.setRules(access.rules.c_str());
  if (!access.rules.empty()) {
    out.setEmptyGroups(kj::arrayPtr(access.emptyGroups.data(), access.emptyGroups.size()));
  }
  writeSharing(model, connection, out);
}

}  // namespace psd
