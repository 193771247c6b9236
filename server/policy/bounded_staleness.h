#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "server/policy/locked.h"
#include "server/policy/step_clocks.h"

namespace psd {

/// Bounded staleness (SSP; Ho et al. 2013): updates and reads as under `locked`, but a trainer more than
/// `bound` steps ahead of the slowest one waits in its next read. A step counts once all shards of the
/// parameter group have it. StepClocks decides which reads wait; departed trainers are not waited for.
/// Thread-safe.
class BoundedStaleness final : public UpdatePolicy, public RowPolicy {
 public:
  /// Maximum number of incomplete steps tracked per trainer, the newest ones; more than can be in flight.
  static constexpr size_t kStepsMax = 1024;

  static PolicyPlan read(ConfigReader options);
  BoundedStaleness(const PolicyScope& scope, uint64_t bound, const Modifiers& modifiers);

  std::string_view name() const override { return "bounded_staleness"; }
  Properties properties() const override { return updates_.properties(); }
  RowPolicy* rows() override { return this; }
  kj::Promise<void> join(const TrainerRef& trainer) override;
  kj::Promise<void> leave(SessionId session) override;
  kj::Promise<Result<PushAnswer>> push(Shard& shard, Lane& lane, ShardPush& push, uint64_t offset,
                                       Gradient gradient) override;
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

  /// Counts one part of a trainer's gradient when its final answer arrives.
  kj::Promise<Result<PushAnswer>> counted(ShardPush& push, kj::Promise<Result<PushAnswer>> answer);
  /// Notes that one shard has a trainer's gradient of this step.
  void count(SessionId session, Step step);
  /// Resolves when the trainer is within the bound.
  kj::Promise<Status> waitUntilWithinBound(SessionId session);
  /// As waitUntilWithinBound() if the trainer must wait; nullptr: it may read now.
  kj::Maybe<kj::Promise<Status>> waitToRead(SessionId session);
  /// With mutex_ held: removes the waits of these trainers; the caller ends them after unlocking.
  Parked take(const StepClocks::Released& released);
  Parked takeAll();
  static void end(Parked waits, const Status& how);

  Locked updates_;
  const size_t blocks_;  // of the parameter group

  mutable std::mutex mutex_;  // guards the members below; held briefly, never while waiting
  StepClocks clocks_;
  std::map<SessionId, std::map<Step, size_t>> arriving_;  // number of shards that have a step
  std::map<SessionId, Parked> parked_;                    // waiting reads
  bool retired_ = false;
  std::optional<Error> ending_;
};

}  // namespace psd
