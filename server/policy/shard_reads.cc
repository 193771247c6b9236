#include "server/policy/shard_reads.h"

#include <kj/debug.h>

#include "server/policy/store_promise.h"

namespace psd {
namespace {

using SnapshotResult = Result<std::shared_ptr<const ShardSnapshot>>;

/// The newest snapshot, if it is of the current version and still referenced; else null. With the lock held.
std::shared_ptr<const ShardSnapshot> newestSnapshot(Shard& shard) {
  auto last = shard.lastSnapshot().lock();
  return last && last->version == shard.version() ? last : nullptr;
}

/// A snapshot of the current version; `guard` holds the shard's lock, `room` the memory.
kj::Promise<SnapshotResult> snapshotUnderLock(Shard& shard, Lane& lane, ShardLock::Guard guard,
                                              ByteBudget::Lease room) {
  if (auto last = newestSnapshot(shard)) return SnapshotResult(std::move(last));
  const Version version = shard.version();
  return storePromise<Result<ReadView>>(shard,
                                        [&](ShardStorage::ReadDone done) {
                                          shard.storage().snapshot(lane, 0, shard.range().count,
                                                                   std::move(done));
                                        })
      .then([&shard, version, guard = kj::mv(guard),
             room = std::move(room)](Result<ReadView> view) mutable -> SnapshotResult {
        if (!view.ok()) return view.error();
        auto snapshot =
            std::make_shared<const ShardSnapshot>(ShardSnapshot{version, std::move(*view), std::move(room)});
        shard.lastSnapshot() = snapshot;
        return std::shared_ptr<const ShardSnapshot>(std::move(snapshot));
      });
}

kj::Promise<SnapshotResult> snapshot(SnapshotBudget& room, Shard& shard, Lane& lane) {
  const uint64_t bytes = shard.range().count * sizeof(float);
  return shard.lock().acquire().then(
      [&shard, &lane, &room, bytes](ShardLock::Guard guard) -> kj::Promise<SnapshotResult> {
        if (auto last = newestSnapshot(shard)) return SnapshotResult(std::move(last));
        if (auto lease = room.tryTake(bytes)) {
          return snapshotUnderLock(shard, lane, kj::mv(guard), std::move(*lease));
        }
        // Releases the lock while the copy waits for memory, so that updates can proceed.
        return room.take(bytes).then([&shard, &lane](ByteBudget::Lease lease) {
          return shard.lock().acquire().then(
              [&shard, &lane, lease = std::move(lease)](ShardLock::Guard again) mutable {
                return snapshotUnderLock(shard, lane, kj::mv(again), std::move(lease));
              });
        });
      });
}

/// Like pullLive(), into memory of the shard's device.
kj::Promise<Result<Version>> pullLiveTo(Shard& shard, Lane& lane, uint64_t offset,
                                        std::span<float> onDevice) {
  const Version version = shard.version();  // before the values, as in pullLive()
  return storePromise<Status>(shard,
                              [&](ShardStorage::Done done) {
                                shard.storage().readTo(lane, offset, onDevice, std::move(done));
                              })
      .then([version](const Status& status) -> Result<Version> {
        if (!status.ok()) return status.error();
        return version;
      });
}

}  // namespace

kj::Promise<Result<PullAnswer>> pullSnapshot(SnapshotBudget& room, Shard& shard, Lane& lane, ShardPull& pull,
                                             uint64_t offset, uint64_t count) {
  // All slices of one pull share one promise for the snapshot, including slices that arrive while the first
  // one still waits for the lock.
  if (pull.snapshot == nullptr) pull.snapshot = snapshot(room, shard, lane).fork();
  auto branch = KJ_ASSERT_NONNULL(pull.snapshot).addBranch();
  pull.delivered += count;
  if (pull.delivered >= shard.range().count) pull.snapshot = nullptr;  // the last slice's branch owns it
  return branch.then([offset, count](SnapshotResult snapshot) -> Result<PullAnswer> {
    if (!snapshot.ok()) return snapshot.error();
    auto values = (*snapshot)->view.values.subspan(offset, count);
    return PullAnswer{(*snapshot)->version, ReadView{values, std::move(*snapshot)}};
  });
}

kj::Promise<Result<PullAnswer>> pullLive(Shard& shard, Lane& lane, uint64_t offset, uint64_t count) {
  // Reads the version before the values: concurrent updates make the values newer than the version, never
  // older, so that staleness is not understated.
  Version version = shard.version();
  return storePromise<Result<ReadView>>(
             shard,
             [&](ShardStorage::ReadDone done) { shard.storage().read(lane, offset, count, std::move(done)); })
      .then([version](Result<ReadView> view) -> Result<PullAnswer> {
        if (!view.ok()) return view.error();
        return PullAnswer{version, std::move(*view)};
      });
}

kj::Promise<Result<Version>> pullTo(UpdatePolicy& policy, Shard& shard, Lane& lane, ShardPull& pull,
                                    uint64_t offset, std::span<float> onDevice) {
  if (policy.properties().readsLive) return pullLiveTo(shard, lane, offset, onDevice);
  return policy.pull(shard, lane, pull, offset, onDevice.size())
      .then([&shard, &lane, onDevice](Result<PullAnswer> answer) -> kj::Promise<Result<Version>> {
        if (!answer.ok()) return Result<Version>(answer.error());
        auto put = storePromise<Status>(shard, [&](ShardStorage::Done done) {
          shard.storage().put(lane, answer->view.values, onDevice, std::move(done));
        });
        return put.then([answer = *std::move(answer)](const Status& status) -> Result<Version> {
          if (!status.ok()) return status.error();
          return answer.version;
        });
      });
}

}  // namespace psd
