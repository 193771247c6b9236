#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "server/policy/locked.h"
#include "server/policy/step_clocks.h"

namespace psd {

/// Bounded staleness (SSP; Ho et al. 2013): updates and reads as under `locked`, but a trainer that is more
/// than `bound` steps ahead of the slowest one waits in its next read. A step counts when it is in all shards
/// of the group. StepClocks decides who waits; no trainer that left or is lost is waited for. Thread-safe.
class BoundedStaleness final : public UpdatePolicy {
 public:
  /// So many of a trainer's newest steps that lack a shard are remembered: more than can be in flight.
  static constexpr size_t kStepsMax = 1024;

  static PolicyPlan read(ObjectReader& options);
  BoundedStaleness(const PolicyScope& scope, uint64_t bound, const Modifiers& modifiers);

  std::string_view name() const override { return "bounded_staleness"; }
  bool completesPushes() const override { return true; }
  kj::Promise<void> join(const TrainerRef& trainer) override;
  kj::Promise<void> leave(SessionId session) override;
  kj::Promise<Result<PushAnswer>> push(Shard& shard, Lane& lane, ShardPush& push, uint64_t offset,
                                       Gradient gradient) override;
  kj::Promise<Result<PushAnswer>> pushDifference(Shard& shard, Lane& lane, ShardPush& push, uint64_t offset,
                                                 Gradient slice) override;
  kj::Promise<Result<PullAnswer>> pull(Shard& shard, Lane& lane, ShardPull& pull, uint64_t offset,
                                       uint64_t count) override;
  kj::Promise<Result<PushAnswer>> pushRows(RowShard& shard, ShardPush& push, uint64_t first,
                                           RowGradient slice) override;
  kj::Maybe<kj::Promise<Status>> waitToPullRows(const std::optional<TrainerRef>& trainer) override;
  kj::Promise<Result<RowsAnswer>> pullRows(RowShard& shard, const std::optional<TrainerRef>& trainer,
                                           RowIds rows, std::span<float> out) override;
  std::vector<Waiting> waiting() const override;
  void retire() override;
  void endWaits(const Error& reason) override;

 private:
  using Parked = std::vector<kj::Own<kj::CrossThreadPromiseFulfiller<Status>>>;

  /// Counts a part of a trainer's gradient with the answer that tells what became of it.
  kj::Promise<Result<PushAnswer>> counted(ShardPush& push, kj::Promise<Result<PushAnswer>> answer);
  /// One shard has taken a trainer's gradient.
  void count(SessionId session, Step step);
  /// Resolves when the trainer is within the bound.
  kj::Promise<Status> mayRead(SessionId session);
  /// mayRead() where the trainer waits; nothing: it may read now.
  kj::Maybe<kj::Promise<Status>> waitToRead(SessionId session);
  /// With mutex_ held: takes out the waits of these trainers, to be ended once the mutex is free.
  Parked take(const StepClocks::Released& released);
  Parked takeAll();
  static void end(Parked waits, const Status& how);

  Locked updates_;
  const size_t blocks_;  // of the group

  mutable std::mutex mutex_;  // guards what follows, for few instructions; never held while waiting
  StepClocks clocks_;
  std::map<SessionId, std::map<Step, size_t>> arriving_;  // shards that have taken a step
  std::map<SessionId, Parked> parked_;                    // reads
  bool retired_ = false;
  std::optional<Error> ending_;
};

}  // namespace psd
