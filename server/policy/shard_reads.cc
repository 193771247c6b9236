#include "server/policy/shard_reads.h"

#include <kj/debug.h>

#include "server/policy/store_promise.h"

namespace psd {
namespace {

using SnapshotResult = Result<std::shared_ptr<const ShardSnapshot>>;

/// The shard as it is now, for a caller that holds the lock (`guard`).
kj::Promise<SnapshotResult> snapshotUnderLock(Shard& shard, Lane& lane, ShardLock::Guard guard) {
  Version version = shard.version();
  if (auto last = shard.lastSnapshot().lock(); last && last->version == version) {
    return SnapshotResult(std::move(last));
  }
  return storePromise<Result<ReadView>>(shard,
                                        [&](ShardStorage::ReadDone done) {
                                          shard.storage().snapshot(lane, 0, shard.range().count,
                                                                   std::move(done));
                                        })
      .then([&shard, version, guard = kj::mv(guard)](Result<ReadView> view) -> SnapshotResult {
        if (!view.ok()) return view.error();
        auto snapshot = std::make_shared<const ShardSnapshot>(ShardSnapshot{version, std::move(*view)});
        shard.lastSnapshot() = snapshot;
        return std::shared_ptr<const ShardSnapshot>(std::move(snapshot));
      });
}

}  // namespace

kj::Promise<Result<PullAnswer>> pullSnapshot(Shard& shard, Lane& lane, ShardPull& pull, uint64_t offset,
                                             uint64_t count) {
  // All slices of one pull share one promise for the snapshot, also those that come while the first
  // still waits for the lock.
  if (pull.snapshot == nullptr) {
    pull.snapshot = shard.lock()
                        .acquire()
                        .then([&shard, &lane](ShardLock::Guard guard) {
                          return snapshotUnderLock(shard, lane, kj::mv(guard));
                        })
                        .fork();
  }
  auto branch = KJ_ASSERT_NONNULL(pull.snapshot).addBranch();
  pull.delivered += count;
  if (pull.delivered >= shard.range().count) pull.snapshot = nullptr;  // the last slice; its branch holds on
  return branch.then([offset, count](SnapshotResult snapshot) -> Result<PullAnswer> {
    if (!snapshot.ok()) return snapshot.error();
    auto values = (*snapshot)->view.values.subspan(offset, count);
    return PullAnswer{(*snapshot)->version, ReadView{values, std::move(*snapshot)}};
  });
}

}  // namespace psd
