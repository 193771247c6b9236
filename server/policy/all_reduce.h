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

/// Trainers average their gradients among themselves; the first of their group pushes the average, which is
/// applied as a round of `sync` with one contribution: whole, over all shards of the group of parameters, or
/// not at all, and only if it was computed from the newest version. So of what several push for a version
/// one counts, and what a trainer pushes that is in an older group is dropped. AveragingGroups decides
/// who averages with whom. Thread-safe.
class AllReduce final : public UpdatePolicy {
 public:
  static PolicyPlan read(ObjectReader& options);
  struct Options {
    AllReduceTerms terms;
    uint32_t startTrainers = 1;
    Clip clip;
  };
  AllReduce(const PolicyScope& scope, const Options& options);

  std::string_view name() const override { return "allreduce"; }
  kj::Promise<void> join(const TrainerRef& trainer) override;
  kj::Promise<void> leave(SessionId session) override;
  kj::Promise<Result<PushAnswer>> push(Shard& shard, Lane& lane, ShardPush& push, uint64_t offset,
                                       Gradient gradient) override;
  kj::Promise<Result<PullAnswer>> pull(Shard& shard, Lane& lane, ShardPull& pull, uint64_t offset,
                                       uint64_t count) override {
    return rounds_.pull(shard, lane, pull, offset, count);
  }
  kj::Promise<Result<RoundDue>> roundDue(SessionId session, Version version) override;
  kj::Promise<Result<FormedGroup>> formGroup(SessionId session, uint64_t after,
                                             const AveragingMember& where) override;
  bool averages() const override { return true; }
  std::vector<Waiting> waiting() const override;
  std::optional<RoundsReport> rounds() const override;
  bool ticks() const override { return true; }
  kj::Promise<void> tick(std::chrono::steady_clock::time_point now) override;
  bool started() const override { return rounds_.started(); }
  ShardLock* groupLock() override { return rounds_.groupLock(); }
  kj::Promise<void> quiesce() override { return rounds_.quiesce(); }
  kj::Promise<void> drain() override { return rounds_.drain(); }
  void retire() override;
  void endWaits(const Error& reason) override;

 private:
  /// Whether the trainer's push is taken; if so it counts as under way, and gets who shares in it.
  bool admit(ShardPush& push);
  void admittedDone();
  // With mutex_ held: forms the group that is due, once no push of the one before is under way, and tells
  // who waits for that.
  void settle();
  void endParked(const Error& reason);

  const ParameterBlock* const first_;  // whose version tells of all; null: the policy rules nothing
  Sync rounds_;

  mutable std::mutex mutex_;  // guards what follows, for few instructions
  AveragingGroups groups_;
  std::map<SessionId, TrainerProcess> processes_;  // of those that are in
  SharedAverage shares_;   // of the members of the newest group, those that do not push
  uint64_t underWay_ = 0;  // slices of pushes
  ParkedCalls<FormedGroup> waiters_;
  std::map<SessionId, uint64_t> after_;  // the group that a waiter was in, or was told of last
  ParkedCalls<RoundDue> watchers_;       // who is told that a group is wanted
  bool ended_ = false;                   // nobody waits any more
};

}  // namespace psd
