#pragma once

#include "server/policy/modifiers.h"
#include "server/policy/policy_capabilities.h"
#include "server/policy/policy_config.h"

namespace psd {

/// Lock-free updates (Niu, Recht, Ré, Wright: Hogwild!, 2011). Each slice is applied on arrival, by the event
/// loop that received it. Concurrent updates interleave element by element, and one of two that race for an
/// element may be lost; optimizer state races in the same way. Reads are live views. Only pushes that create
/// table rows or check for rows to evict take a lock. Thread-safe.
class Hogwild final : public UpdatePolicy, public RowPolicy {
 public:
  /// If updates are recorded (PolicyScope::recorded), the plan makes a RecordedHogwild.
  static PolicyPlan read(ConfigReader options);
  /// `staging`: memory for decoded row gradients.
  Hogwild(const Modifiers& modifiers, std::shared_ptr<StagingPool> staging);

  std::string_view name() const override { return "hogwild"; }
  Properties properties() const override {
    return {.readsLive = true, .appliesSlices = true, .takesDeviceGradients = true, .takesDifferences = true};
  }
  RowPolicy* rows() override { return this; }
  kj::Promise<Result<PushAnswer>> push(Shard& shard, Lane& lane, ShardPush& push, uint64_t offset,
                                       Gradient gradient) override;
  kj::Promise<Result<PushAnswer>> pushRows(RowShard& shard, ShardPush& push, uint64_t first,
                                           RowGradient slice) override;
  kj::Promise<Result<RowsAnswer>> pullRows(RowShard& shard, const std::optional<TrainerRef>& trainer,
                                           RowIds rows, std::span<float> out) override;
  kj::Promise<Result<PullAnswer>> pull(Shard& shard, Lane& lane, ShardPull& pull, uint64_t offset,
                                       uint64_t count) override;

 private:
  /// Starts an update with the first slice of a part, unless the part is too stale.
  void begin(ParameterBlock& block, ShardPush& push) const;
  /// The answer to a slice of a part that is too stale.
  static PushAnswer dropped(const ParameterBlock& block, const ShardPush& push);
  RowChange rowChange() const;
  UpdateScalars scalarsOf(const ParameterBlock& block, const ShardPush& push) const;
  /// Creates the missing rows of `slice` and applies `part`, a subset of it, under the shard's lock.
  /// `applied`: number of rows of the slice that are already applied.
  kj::Promise<Result<PushAnswer>> createAndApplyRows(RowShard& shard, ShardPush& push, StagedRows part,
                                                     RowIds slice, uint64_t applied = 0);
  /// Marks the slice as applied. With the last slice of the part, ends the update and evicts the rows that
  /// are due, except those of this slice.
  static kj::Promise<Result<PushAnswer>> endRows(RowShard& shard, ShardPush& push, const RowIds& slice);

  const std::shared_ptr<StagingPool> staging_;
  const StalenessRule staleness_;
  GradientChange change_;  // immutable once constructed
};

}  // namespace psd
