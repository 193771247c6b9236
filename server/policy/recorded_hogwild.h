#pragma once

#include <memory>

#include "server/policy/locked.h"

namespace psd {

/// Hogwild! with every update recorded, for a log or a standby. A shard's gradient is gathered first and then
/// applied as a whole, without waiting for others: pushes share the shard's lock and race element by element,
/// and reads are live views. Only to copy a shard does anybody hold its lock alone. The record tells updates
/// in the order in which they ended. Running them one after the other in that order gives what these pushes,
/// each whole and once, would have made of the model without races: another run of Hogwild!, not the same
/// bits. Rows of tables are updated as under Locked. Thread-safe.
class RecordedHogwild final : public UpdatePolicy {
 public:
  RecordedHogwild(const PolicyScope& scope, const Modifiers& modifiers);

  std::string_view name() const override { return "hogwild"; }
  bool readsLive() const override { return true; }
  bool completesPushes() const override { return true; }
  kj::Promise<void> join(const TrainerRef& trainer) override;
  kj::Promise<void> leave(SessionId session) override;
  kj::Promise<Result<PushAnswer>> push(Shard& shard, Lane& lane, ShardPush& push, uint64_t offset,
                                       Gradient gradient) override;
  kj::Promise<Result<PushAnswer>> pushDifference(Shard& shard, Lane& lane, ShardPush& push, uint64_t offset,
                                                 Gradient slice) override;
  kj::Promise<Result<PullAnswer>> pull(Shard& shard, Lane& lane, ShardPull& pull, uint64_t offset,
                                       uint64_t count) override;
  kj::Promise<Result<Version>> pullTo(Shard& shard, Lane& lane, ShardPull& pull, uint64_t offset,
                                      std::span<float> onDevice) override;
  kj::Promise<Result<PushAnswer>> pushRows(RowShard& shard, ShardPush& push, uint64_t first,
                                           RowGradient slice) override;
  kj::Promise<Result<RowsAnswer>> pullRows(RowShard& shard, const std::optional<TrainerRef>& trainer,
                                           RowIds rows, std::span<float> out) override;

 private:
  /// Applies a gradient when the trainer's pushes before it are in.
  kj::Promise<Result<PushAnswer>> apply(Shard& shard, Lane& lane, WholeShard whole);
  kj::Promise<Result<PushAnswer>> shareLock(Shard& shard, Lane& lane, WholeShard whole,
                                            ByteBudget::Lease room);
  /// Applies a gradient while the caller shares the shard's lock, with `room` for the update in the log.
  kj::Promise<Result<PushAnswer>> applySharing(Shard& shard, Lane& lane, WholeShard whole,
                                               ByteBudget::Lease room);

  const std::shared_ptr<StagingPool> staging_;
  const StalenessRule staleness_;
  PushTurns turns_;
  Locked rows_;
};

}  // namespace psd
