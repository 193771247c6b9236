#pragma once

#include <memory>

#include "server/policy/locked.h"

namespace psd {

/// Hogwild! with every update recorded, for a log or a standby. A shard's gradient is gathered first and then
/// applied as a whole, without waiting for others: pushes hold the shard's lock shared and race element by
/// element, and reads are live views. The lock is held exclusively only to copy a shard. The log has the
/// updates in the order in which they ended. Replaying them sequentially yields what these pushes, each
/// applied completely and once, would produce without races: a valid Hogwild! run, but not the same bits.
/// Table rows are updated as under Locked. Thread-safe.
class RecordedHogwild final : public UpdatePolicy, public RowPolicy {
 public:
  RecordedHogwild(const PolicyScope& scope, const Modifiers& modifiers);

  std::string_view name() const override { return "hogwild"; }
  Properties properties() const override {
    return {.readsLive = true, .completesPushes = true, .takesDifferences = true};
  }
  RowPolicy* rows() override { return this; }
  kj::Promise<void> join(const TrainerRef& trainer) override;
  kj::Promise<void> leave(SessionId session) override;
  kj::Promise<Result<PushAnswer>> push(Shard& shard, Lane& lane, ShardPush& push, uint64_t offset,
                                       Gradient gradient) override;
  kj::Promise<Result<PullAnswer>> pull(Shard& shard, Lane& lane, ShardPull& pull, uint64_t offset,
                                       uint64_t count) override;
  kj::Promise<Result<PushAnswer>> pushRows(RowShard& shard, ShardPush& push, uint64_t first,
                                           RowGradient slice) override;
  kj::Promise<Result<RowsAnswer>> pullRows(RowShard& shard, const std::optional<TrainerRef>& trainer,
                                           RowIds rows, std::span<float> out) override;

 private:
  /// Applies a gradient after the trainer's earlier pushes.
  kj::Promise<Result<PushAnswer>> apply(Shard& shard, Lane& lane, WholeShard whole);
  kj::Promise<Result<PushAnswer>> shareLock(Shard& shard, Lane& lane, WholeShard whole,
                                            ByteBudget::Lease space);
  /// Applies a gradient; the caller holds the shard's lock shared. `space`: log space reserved for the
  /// update.
  kj::Promise<Result<PushAnswer>> applySharing(Shard& shard, Lane& lane, WholeShard whole,
                                               ByteBudget::Lease space);

  const std::shared_ptr<StagingPool> staging_;
  const StalenessRule staleness_;
  PushTurns turns_;
  Locked rows_;
};

}  // namespace psd
