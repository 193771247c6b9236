#pragma once

#include "server/policy/policy_config.h"
#include "server/policy/shard_reads.h"
#include "server/policy/update_policy.h"

namespace psd {

/// Updates under the shard's lock: each shard moves from one version to the next whole, no update is
/// lost, and a pull sees every shard at one version. A gradient that comes in several slices is gathered
/// first; a pull in several slices reads one snapshot, shared by all pulls of that version. Waiting for the
/// lock parks a promise. Deterministic for a given order of pushes. Thread-safe.
class Locked final : public UpdatePolicy {
 public:
  static PolicyFactory read(ObjectReader& options);
  explicit Locked(const PolicyScope& scope) : staging_(scope.staging) {}

  std::string_view name() const override { return "locked"; }
  kj::Promise<Result<PushAnswer>> push(Shard& shard, Lane& lane, ShardPush& push, uint64_t offset,
                                       Gradient gradient) override;
  kj::Promise<Result<PullAnswer>> pull(Shard& shard, Lane& lane, ShardPull& pull, uint64_t offset,
                                       uint64_t count) override {
    return pullSnapshot(shard, lane, pull, offset, count);
  }

 private:
  kj::Promise<Result<PushAnswer>> applyWhole(Shard& shard, Lane& lane, ShardPush& push, Gradient gradient);

  const std::shared_ptr<StagingPool> staging_;
};

}  // namespace psd
