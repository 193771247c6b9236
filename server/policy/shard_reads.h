#pragma once

#include <memory>

#include "server/policy/update_policy.h"

namespace psd {

/// Reads one slice of a shard as it was between two updates. All slices of one pull come from one snapshot,
/// taken under the shard's lock and shared by the pulls of that version; it waits for room.
kj::Promise<Result<PullAnswer>> pullSnapshot(SnapshotRoom& room, Shard& shard, Lane& lane, ShardPull& pull,
                                             uint64_t offset, uint64_t count);

/// The snapshot of the whole shard that an answer of pullSnapshot() is a part of.
inline std::shared_ptr<const ShardSnapshot> snapshotOf(const PullAnswer& answer) {
  return std::static_pointer_cast<const ShardSnapshot>(answer.view.owner);
}

/// A slice of the shard as it is while updates go on, with a version that its values have at least.
kj::Promise<Result<PullAnswer>> pullLive(Shard& shard, Lane& lane, uint64_t offset, uint64_t count);

/// Reads a slice of the shard, as it is while updates go on, into memory of the shard's device. Gives a
/// version that its values have at least.
kj::Promise<Result<Version>> pullLiveTo(Shard& shard, Lane& lane, uint64_t offset, std::span<float> onDevice);

}  // namespace psd
