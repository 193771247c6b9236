#pragma once

#include <memory>

#include "server/policy/update_policy.h"

namespace psd {

/// Reads one slice of a shard at a single version. All slices of one pull come from one snapshot, taken under
/// the shard's lock and shared by all pulls of that version. Waits until the snapshot budget has space.
kj::Promise<Result<PullAnswer>> pullSnapshot(SnapshotBudget& budget, Shard& shard, Lane& lane,
                                             ShardPull& pull, uint64_t offset, uint64_t count);

/// The snapshot of the whole shard that an answer of pullSnapshot() refers to.
inline std::shared_ptr<const ShardSnapshot> snapshotOf(const PullAnswer& answer) {
  return std::static_pointer_cast<const ShardSnapshot>(answer.view.owner);
}

/// Reads a slice of the shard concurrently with updates. The version is a lower bound for the values.
kj::Promise<Result<PullAnswer>> pullLive(Shard& shard, Lane& lane, uint64_t offset, uint64_t count);

/// Reads one slice under the policy into memory of the shard's device that another process also maps. Returns
/// the version.
kj::Promise<Result<Version>> pullTo(UpdatePolicy& policy, Shard& shard, Lane& lane, ShardPull& pull,
                                    uint64_t offset, std::span<float> onDevice);

}  // namespace psd
