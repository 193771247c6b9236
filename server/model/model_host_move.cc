// How a ModelHost receives a model that moves here from other daemons.

#include <spdlog/fmt/fmt.h>

#include "common/plan/model_partitions.h"
#include "common/text/text.h"
#include "server/model/make_store.h"
#include "server/model/model_host.h"
#include "server/model/trainers_optimizer.h"

namespace psd {
namespace {

/// Checks that the source daemons and this one have the same policies and optimizers.
Status checkRules(const Manifest& manifest, const DaemonConfig& config) {
  std::vector<std::string> theirs, own;
  for (const ManifestGroup& group : manifest.groups) {
    theirs.push_back(fmt::format("{} with {}", group.policy, group.optimizer.name()));
  }
  for (const GroupConfig& group : config.groups) {
    own.push_back(fmt::format("{} with {}", group.policy.type, group.optimizer.name()));
  }
  if (theirs == own) return {};
  return {ErrorCode::modelMismatch, fmt::format("the source daemons have {}, and this one has {}",
                                                joined(theirs, ", "), joined(own, ", "))};
}

/// Joins the partitions of the source daemons to the whole model, and returns its placement over them.
Result<std::vector<ModelPartition>> partitionsOf(const std::vector<Checkpoint>& parts, ModelSpec& whole) {
  std::vector<ModelSpec> specs;
  for (const Checkpoint& part : parts) specs.push_back(part.manifest.model);
  PSD_ASSIGN_OR_RETURN(whole, joinPartitions(specs));
  PSD_ASSIGN_OR_RETURN(auto cut, partitionModel(whole, static_cast<uint32_t>(parts.size())));
  for (size_t i = 0; i < parts.size(); i++) {
    if (cut[i].spec.signature() == specs[i].signature() && cut[i].spec.partition == specs[i].partition)
      continue;
    return Error{ErrorCode::modelMismatch, fmt::format("part {} is not of the same model as the others", i)};
  }
  return cut;
}

/// Checks that the received files contain as many bytes as a partition of `elements` elements needs, so that
/// no memory is allocated on the word of a manifest alone.
Status checkReceivedBytes(Env& env, const std::vector<Checkpoint>& parts, uint64_t elements) {
  uint64_t bytes = 0;
  for (const Checkpoint& part : parts) {
    for (const ManifestShard& shard : part.manifest.shards) {
      const std::string path = part.path + "/" + shard.file;
      PSD_ASSIGN_OR_RETURN(const bool there, env.exists(path));
      if (!there) continue;  // needed only by another daemon's partition
      PSD_ASSIGN_OR_RETURN(const auto file, env.open(path));
      bytes += file->size();
    }
  }
  if (bytes / sizeof(float) >= elements) return {};
  return {ErrorCode::modelMismatch,
          fmt::format("{} elements were expected, but only {} bytes were received", elements, bytes)};
}

}  // namespace

Result<std::shared_ptr<ServedModel>> ModelHost::partitionFrom(Env& env, const std::vector<Checkpoint>& parts,
                                                              const DaemonConfig& config) const {
  DaemonConfig as = config;
  if (!parts.empty()) adoptOptimizers(as.groups, optimizersOf(parts.front().manifest));
  ModelSpec whole;
  PSD_ASSIGN_OR_RETURN(const auto before, partitionsOf(parts, whole));
  std::vector<PlacedCheckpoint> placed;
  for (size_t i = 0; i < parts.size(); i++) {
    PSD_RETURN_IF_ERROR(checkRules(parts[i].manifest, as));
    placed.push_back({&parts[i], before[i].begin});
  }
  const Partition own = config.daemons.partition();
  PSD_ASSIGN_OR_RETURN(const auto cut, partitionModel(whole, own.of));
  const ModelPartition& mine = cut[own.index];
  PSD_RETURN_IF_ERROR(checkReceivedBytes(env, parts, mine.count));
  const auto fill = [&](ParameterStore& store) -> Status {
    PSD_ASSIGN_OR_RETURN(const Restored restored, restorePartition(env, placed, store, mine.begin));
    if (restored.notes.empty()) return {};
    return {ErrorCode::modelMismatch, restored.notes.front()};
  };
  PSD_ASSIGN_OR_RETURN(auto store, makeStore(as, mine.spec, backends_, fill));
  Policies policies = makePolicies(config, *store);
  return std::make_shared<ServedModel>(std::move(store), std::move(policies), staging_);
}

kj::Promise<Status> ModelHost::installModel(std::shared_ptr<ServedModel> model) {
  drop();
  model_ = std::move(model);
  const ParameterStore& store = *model_->store;
  for (size_t i = 0; i < store.blockCount(); i++) savedPushes_.push_back(model_->store->block(i).pushed());
  initialized_ = true;
  const bool takesFirst = config_->durability.type == DurabilityConfig::Type::checkpoint;
  return background_
      .run<Status>([this, takesFirst, source = savingSource(model_)]() -> Status {
        PSD_RETURN_IF_ERROR(durability_.begin(source));
        if (!takesFirst) return {};
        return durability_.checkpointNow().status();  // with a log, begin() has taken one
      })
      .then([this](Status saved) {
        ready_ = saved.ok();
        return saved;
      });
}

void ModelHost::drop() {
  if (model_) {
    model_->retire();
    model_->store->setSharedReadable(false);
  }
  model_ = nullptr;
  initialized_ = ready_ = false;
  savedPushes_.clear();
}

}  // namespace psd
