#include "server/loop/models_in_use.h"

namespace psd {

ModelsInUse::PerModel& ModelsInUse::ofModel(const std::shared_ptr<ServedModel>& model) {
  const auto found = models_.find(model);
  if (found != models_.end()) return found->second;
  std::erase_if(models_, [](const auto& entry) { return entry.first.expired(); });
  return models_.emplace(model, PerModel{model->store->makeLanes(), {}, 0}).first->second;
}

Lane& ModelsInUse::laneFor(const std::shared_ptr<ServedModel>& model, const Shard& shard) {
  return *ofModel(model).lanes[shard.device()];
}

const std::shared_ptr<UpdatePolicy>& ModelsInUse::policyOf(const std::shared_ptr<ServedModel>& model,
                                                           const ParameterBlock& block) {
  PerModel& mine = ofModel(model);
  if (const uint64_t now = model->generation(); mine.generation != now) {
    mine.policies = model->policies();
    mine.generation = now;
  }
  return mine.policies[block.group()];
}

void ModelsInUse::forgetPolicies() {
  for (auto& [model, mine] : models_) {
    mine.policies.clear();
    mine.generation = 0;
  }
}

}  // namespace psd
