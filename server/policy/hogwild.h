#pragma once

#include "server/policy/modifiers.h"
#include "server/policy/policy_config.h"
#include "server/policy/update_policy.h"

namespace psd {

/// Lock-free updates (Niu, Recht, Ré, Wright: Hogwild!, 2011). Each slice is applied as it comes, by
/// whichever loop received it; concurrent updates interleave element by element, and of two that race
/// for one element one may be lost. Optimizer state races like the weights do. Reads are live views. No lock
/// is taken, but by pushes that create rows of tables or have to look for rows to evict. Thread-safe.
class Hogwild final : public UpdatePolicy {
 public:
  /// Where updates are recorded, the policy is RecordedHogwild.
  static PolicyPlan read(ObjectReader& options);
  /// `staging`: memory for rows' gradients that a codec made.
  Hogwild(const Modifiers& modifiers, std::shared_ptr<StagingPool> staging);

  std::string_view name() const override { return "hogwild"; }
  bool readsLive() const override { return true; }
  bool appliesSlices() const override { return true; }
  bool takesDeviceGradients() const override { return true; }
  kj::Promise<Result<PushAnswer>> push(Shard& shard, Lane& lane, ShardPush& push, uint64_t offset,
                                       Gradient gradient) override;
  kj::Promise<Result<PushAnswer>> pushDifference(Shard& shard, Lane& lane, ShardPush& push, uint64_t offset,
                                                 Gradient slice) override;
  kj::Promise<Result<PushAnswer>> pushRows(RowShard& shard, ShardPush& push, uint64_t first,
                                           RowGradient slice) override;
  kj::Promise<Result<RowsAnswer>> pullRows(RowShard& shard, const std::optional<TrainerRef>& trainer,
                                           RowIds rows, std::span<float> out) override;
  kj::Promise<Result<PullAnswer>> pull(Shard& shard, Lane& lane, ShardPull& pull, uint64_t offset,
                                       uint64_t count) override;
  kj::Promise<Result<Version>> pullTo(Shard& shard, Lane& lane, ShardPull& pull, uint64_t offset,
                                      std::span<float> onDevice) override;

 private:
  /// Begins an update with the first slice of a part, unless the part is too old.
  void begin(ParameterBlock& block, ShardPush& push) const;
  /// The answer to a slice of a part that is too old.
  static PushAnswer dropped(const ParameterBlock& block, const ShardPush& push);
  RowChange rowChange() const;
  UpdateScalars scalarsOf(const ParameterBlock& block, const ShardPush& push) const;
  /// Makes the rows that are not there, and applies the part, which is of `slice`, under the shard's lock.
  /// `applied`: rows of the slice that have their gradients already.
  kj::Promise<Result<PushAnswer>> makeAndApplyRows(RowShard& shard, ShardPush& push, StagedRows part,
                                                   RowIds slice, uint64_t applied = 0);
  /// The rows of the slice are done; with the last slice of the part this ends the update, and evicts the
  /// rows that are due, but for those of this slice.
  static kj::Promise<Result<PushAnswer>> endRows(RowShard& shard, ShardPush& push, const RowIds& slice);

  const std::shared_ptr<StagingPool> staging_;
  const StalenessRule staleness_;
  GradientChange change_;  // immutable once constructed
};

}  // namespace psd
