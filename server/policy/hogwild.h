#pragma once

#include "server/policy/modifiers.h"
#include "server/policy/policy_config.h"
#include "server/policy/update_policy.h"

namespace psd {

/// Lock-free updates (Niu, Recht, Ré, Wright: Hogwild!, 2011). Each slice is applied as it comes, by
/// whichever loop received it; concurrent updates interleave element by element, and of two that race
/// for one element one may be lost. Optimizer state races like the weights do. Reads are live views. No lock
/// is taken. Thread-safe.
class Hogwild final : public UpdatePolicy {
 public:
  static PolicyPlan read(ObjectReader& options);
  explicit Hogwild(const Modifiers& modifiers);

  std::string_view name() const override { return "hogwild"; }
  bool readsLive() const override { return true; }
  bool takesDeviceGradients() const override { return true; }
  kj::Promise<Result<PushAnswer>> push(Shard& shard, Lane& lane, ShardPush& push, uint64_t offset,
                                       Gradient gradient) override;
  kj::Promise<Result<PullAnswer>> pull(Shard& shard, Lane& lane, ShardPull& pull, uint64_t offset,
                                       uint64_t count) override;
  kj::Promise<Result<Version>> pullTo(Shard& shard, Lane& lane, ShardPull& pull, uint64_t offset,
                                      std::span<float> onDevice) override;

 private:
  const StalenessRule staleness_;
  GradientChange change_;  // immutable once constructed
};

}  // namespace psd
