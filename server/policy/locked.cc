#include "server/policy/locked.h"

#include <algorithm>

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

PolicyFactory Locked::read(ObjectReader&) {
  return [](const Optimizer& optimizer) { return std::make_unique<Locked>(optimizer); };
}

kj::Promise<Result<PushAnswer>> Locked::push(Shard& shard, Lane& lane, ShardPush& push, uint64_t offset,
                                             Gradient gradient) {
  uint64_t whole = shard.range().count;
  if (gradient.size() == whole) return applyWhole(shard, lane, push, gradient);
  push.staged.resize(whole);
  gradient.copyTo(0, std::span(push.staged).subspan(offset, gradient.size()));
  if (push.arrived.covered() == whole)
    return applyWhole(shard, lane, push, std::span<const float>(push.staged));
  return Result<PushAnswer>(PushAnswer{false, shard.version(), 0});
}

kj::Promise<Result<PushAnswer>> Locked::applyWhole(Shard& shard, Lane& lane, ShardPush& push,
                                                   Gradient gradient) {
  return shard.lock().acquire().then([this, &shard, &lane, &push, gradient](ShardLock::Guard guard) {
    push.number = shard.beginUpdate();
    push.staleness = stalenessOf(shard, push);
    UpdateScalars update{push.number, optimizer_.learningRate(push.number)};
    return storePromise<Status>(shard,
                                [&](ShardStorage::Done done) {
                                  shard.storage().apply(lane, 0, gradient, update, std::move(done));
                                })
        .then([&shard, &push, guard = kj::mv(guard)](Status status) -> Result<PushAnswer> {
          if (!status.ok()) return status.error();
          return PushAnswer{true, shard.endUpdate(), push.staleness};
        });
  });
}

kj::Promise<Result<PullAnswer>> Locked::pull(Shard& shard, Lane& lane, ShardPull& pull, uint64_t offset,
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
