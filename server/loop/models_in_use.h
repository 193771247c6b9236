#pragma once

#include <map>
#include <memory>

#include "server/policy/served_model.h"

namespace psd {

/// Per-loop state of each model in use: the loop's lanes, and a cache of the policies, so that finding a
/// block's policy takes no lock. Owned by the loop's thread.
class ModelsInUse {
 public:
  /// The loop's lane for the shard's device.
  Lane& laneFor(const std::shared_ptr<ServedModel>& model, const Shard& shard);
  /// The block's current policy. Takes a lock only on the first call after policies changed.
  const std::shared_ptr<UpdatePolicy>& policyOf(const std::shared_ptr<ServedModel>& model,
                                                const ParameterBlock& block);
  /// Drops the cached policies, so that retired ones are released.
  void forgetPolicies();

 private:
  struct PerModel {
    Lanes lanes;
    Policies policies;
    uint64_t generation = 0;  ///< ServedModel::generation() of `policies`
  };

  PerModel& ofModel(const std::shared_ptr<ServedModel>& model);

  std::map<std::weak_ptr<ServedModel>, PerModel, std::owner_less<>> models_;
};

}  // namespace psd
