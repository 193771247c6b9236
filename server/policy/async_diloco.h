#pragma once

#include <mutex>
#include <optional>

#include "common/types/learner_paces.h"
#include "server/policy/locked.h"
#include "server/policy/parked_calls.h"

namespace psd {

/// DiLoCo without rounds (Liu, Chhaparia, Douillard, Kale, Rusu, Shen, Szlam, Ranzato 2024): trainers take
/// `period` local steps and push the pseudo-gradient; each push is immediately one update of the optimizer,
/// under each shard's lock. Trainers never wait for one another. With `dynamic_period`, trainers slower than
/// the fastest are notified to push earlier, as LearnerPaces decides. Thread-safe.
class AsyncDiloco final : public UpdatePolicy, public RoundNotices {
 public:
  static PolicyPlan read(ConfigReader options);
  /// `dynamicPeriod`: local steps of the fastest trainers; nullopt: the period is the same for all trainers.
  AsyncDiloco(const PolicyScope& scope, std::optional<uint64_t> dynamicPeriod);

  std::string_view name() const override { return "async_diloco"; }
  Properties properties() const override { return {.completesPushes = true, .ticks = dynamic_}; }
  RoundNotices* roundNotices() override { return dynamic_ ? this : nullptr; }
  kj::Promise<void> join(const TrainerRef& trainer) override { return updates_.join(trainer); }
  kj::Promise<void> leave(SessionId session) override;
  kj::Promise<Result<PushAnswer>> push(Shard& shard, Lane& lane, ShardPush& push, uint64_t offset,
                                       Gradient gradient) override;
  kj::Promise<Result<PullAnswer>> pull(Shard& shard, Lane& lane, ShardPull& pull, uint64_t offset,
                                       uint64_t count) override {
    return updates_.pull(shard, lane, pull, offset, count);
  }
  kj::Promise<Result<RoundDue>> roundDue(SessionId session, Version version) override;
  kj::Promise<void> tick(std::chrono::steady_clock::time_point now) override;
  void retire() override;
  void endWaits(const Error& reason) override;

 private:
  /// Ends current and future roundDue() waits with `reason`.
  void endParked(const Error& reason);

  Locked updates_;
  const bool dynamic_;

  std::mutex mutex_;  // guards the members below; held briefly
  LearnerPaces paces_;
  ParkedCalls<RoundDue> waits_;  // of trainers taking local steps
};

}  // namespace psd
