#pragma once

#include <map>
#include <memory>

#include "server/policy/served_model.h"

namespace psd {

/// What one event loop has for itself of each model that is in use: its lanes, and a copy of the policies, so
/// that finding the one that rules a block takes no lock. Owned by the loop's thread.
class ModelsInUse {
 public:
  /// The loop's lane for the shard's device.
  Lane& laneFor(const std::shared_ptr<ServedModel>& model, const Shard& shard);
  /// The policy that rules the block now. Without a lock, but for the first time after policies changed.
  const std::shared_ptr<UpdatePolicy>& policyOf(const std::shared_ptr<ServedModel>& model,
                                                const ParameterBlock& block);
  /// Lets go of all policies: those that are retired are not to be kept here.
  void forgetPolicies();

 private:
  struct OfModel {
    Lanes lanes;
    Policies policies;
    uint64_t generation = 0;  ///< ServedModel::generation() of these
  };

  OfModel& ofModel(const std::shared_ptr<ServedModel>& model);

  std::map<std::weak_ptr<ServedModel>, OfModel, std::owner_less<>> models_;
};

}  // namespace psd
