#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "server/membership/averaging_groups.h"
#include "server/policy/parked_calls.h"
#include "server/policy/sync.h"

namespace psd {

/// Trainers average their gradients among themselves; the first member of the averaging group pushes the
/// average. The push is applied as a `sync` round with one contribution: atomically over all shards of the
/// parameter group, and only if it was computed from the newest version. Of several pushes for one version
/// only one is applied, and pushes from an older averaging group are dropped. AveragingGroups decides the
/// membership. Thread-safe.
class AllReduce final : public UpdatePolicy, public RoundPolicy, public RoundNotices, public AveragingPolicy {
 public:
  static PolicyPlan read(ConfigReader options);
  struct Options {
    AllReduceTerms terms;
    uint32_t startTrainers = 1;
    Clip clip;
  };
  AllReduce(const PolicyScope& scope, const Options& options);

  std::string_view name() const override { return "allreduce"; }
  Properties properties() const override { return {.ticks = true}; }
  RoundPolicy* rounds() override { return this; }
  RoundNotices* roundNotices() override { return this; }
  AveragingPolicy* averaging() override { return this; }
  kj::Promise<void> join(const TrainerRef& trainer) override;
  kj::Promise<void> leave(SessionId session) override;
  kj::Promise<Result<PushAnswer>> push(Shard& shard, Lane& lane, ShardPush& push, uint64_t offset,
                                       Gradient gradient) override;
  kj::Promise<Result<PullAnswer>> pull(Shard& shard, Lane& lane, ShardPull& pull, uint64_t offset,
                                       uint64_t count) override {
    return rounds_.pull(shard, lane, pull, offset, count);
  }
  kj::Promise<Result<RoundDue>> roundDue(SessionId session, Version version) override;
  kj::Promise<Result<FormedGroup>> formAveragingGroup(SessionId session, uint64_t after,
                                                      const AveragingMember& where) override;
  std::vector<Waiting> waiting() const override;
  RoundsReport report() const override;
  kj::Promise<void> tick(std::chrono::steady_clock::time_point now) override;
  bool started() const override { return rounds_.started(); }
  ShardLock* groupLock() override { return rounds_.groupLock(); }
  kj::Promise<void> quiesce() override { return rounds_.quiesce(); }
  kj::Promise<void> drain() override { return rounds_.drain(); }
  void retire() override;
  void endWaits(const Error& reason) override;

 private:
  /// Whether the trainer's push is accepted. If so, counts it as in flight and sets its ShardPush::shares.
  bool acceptPush(ShardPush& push);
  void pushDone();
  // With mutex_ held: forms the averaging group that is due once no push of the previous one is in flight,
  // and answers the waiting members.
  void settle();
  void endParked(const Error& reason);

  const ParameterBlock* const first_;  // its version stands for the whole group; null: no shards
  Sync rounds_;

  mutable std::mutex mutex_;  // guards the members below; held briefly
  AveragingGroups groups_;
  std::map<SessionId, TrainerProcess> processes_;  // of joined trainers
  SharedAverage shares_;                           // members of the newest averaging group that do not push
  uint64_t inFlight_ = 0;                          // push slices in flight
  ParkedCalls<FormedGroup> waiters_;
  std::map<SessionId, uint64_t> after_;  // a waiter's last known generation
  ParkedCalls<RoundDue> watchers_;       // notified when a new averaging group is wanted or formed
  bool ended_ = false;                   // all waits have ended; new ones fail
};

}  // namespace psd
