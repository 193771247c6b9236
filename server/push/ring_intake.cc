#include "server/push/ring_intake.h"

#include <utility>

#include "server/model/slice_checks.h"
#include "server/policy/store_promise.h"

namespace psd {
namespace {

/// A slice of a gradient in memory that no trainer can reach.
struct OwnGradient {
  Gradient gradient;
  std::shared_ptr<const void> owner;  ///< keeps it valid
};

/// Copies the slice described by `head` from device memory to device or host memory. Concurrent writes by the
/// trainer to `onDevice` may or may not be in the copy.
kj::Promise<Result<OwnGradient>> copyGradient(const std::shared_ptr<ServedModel>& model, Lane& lane,
                                              const SliceHead& head, std::span<const float> onDevice,
                                              bool toDevice) {
  const uint32_t number = head.shard;
  const uint64_t offset = head.offset, count = onDevice.size();
  Shard& shard = model->store->shard(number);
  if (toDevice) {
    return storePromise<Result<StagedGradient>>(
               shard,
               [&](ShardStorage::StageDone done) { shard.storage().take(lane, onDevice, std::move(done)); })
        .then([model, number, offset, count](Result<StagedGradient> copy) -> Result<OwnGradient> {
          if (copy.ok()) return OwnGradient{Gradient::onDevice(copy->values), std::move(copy->owner)};
          if (copy.error().code == ErrorCode::nonFinite) return notFinite(*model, number, offset, count);
          return copy.error();
        });
  }
  return storePromise<Result<ReadView>>(
             shard,
             [&](ShardStorage::ReadDone done) { shard.storage().fetch(lane, onDevice, std::move(done)); })
      .then([model, number, offset](Result<ReadView> copy) -> Result<OwnGradient> {
        if (!copy.ok()) return copy.error();
        PSD_RETURN_IF_ERROR(checkFinite(*model, number, offset, copy->values));
        return OwnGradient{Gradient(copy->values), std::move(copy->owner)};
      });
}

}  // namespace

kj::Promise<Result<PushSlice>> RingIntake::copy(const std::shared_ptr<ServedModel>& model, Lane& lane,
                                                bool toDevice, PushSlice slice) {
  auto copied = copyGradient(model, lane, slice.head, slice.gradient.values(), toDevice);
  return copied.then([slice = std::move(slice)](Result<OwnGradient> copy) mutable -> Result<PushSlice> {
    if (!copy.ok()) return copy.error();
    slice.gradient = copy->gradient;
    // The ring's copy budget is returned with the copy.
    using CopyAndSource = std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>;
    slice.held = std::make_shared<const CopyAndSource>(std::move(copy->owner),
                                                       std::move(slice.ring ? slice.ring : slice.held));
    slice.ring = nullptr;
    return std::move(slice);
  });
}

kj::Promise<Result<PushSlice>> RingIntake::take(const std::shared_ptr<ServedModel>& model, Lane& lane,
                                                bool toDevice, PushSlice slice) {
  auto over = kj::newPromiseAndFulfiller<void>();
  auto fulfiller = std::make_shared<kj::Own<kj::PromiseFulfiller<void>>>(kj::mv(over.fulfiller));
  slice.turn = {nullptr, [fulfiller](const void*) { (*fulfiller)->fulfill(); }};
  kj::Promise<void> before = kj::READY_NOW;
  KJ_IF_MAYBE (turn, turn_) {
    before = turn->addBranch();
  }
  turn_ = over.promise.fork();
  auto turn = slice.turn;  // held until then even if the copy failed
  return copy(model, lane, toDevice, std::move(slice))
      .then([before = kj::mv(before), turn = std::move(turn)](Result<PushSlice> copied) mutable {
        return before.then([copied = std::move(copied), turn = std::move(turn)]() mutable {
          turn = nullptr;
          return std::move(copied);
        });
      });
}

}  // namespace psd
