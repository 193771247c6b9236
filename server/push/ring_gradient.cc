#include "server/push/ring_gradient.h"

#include <utility>

#include "server/model/slice_checks.h"
#include "server/policy/store_promise.h"

namespace psd {

kj::Promise<Result<OwnGradient>> copyGradient(Shard& shard, Lane& lane, uint64_t offset,
                                              std::span<const float> onDevice, bool toDevice) {
  const uint32_t number = shard.range().id.value;
  if (toDevice) {
    return storePromise<Result<StagedGradient>>(
               shard,
               [&](ShardStorage::StageDone done) { shard.storage().take(lane, onDevice, std::move(done)); })
        .then([number, offset](Result<StagedGradient> copy) -> Result<OwnGradient> {
          if (copy.ok()) return OwnGradient{Gradient::onDevice(copy->values), std::move(copy->owner)};
          if (copy.error().code == ErrorCode::nonFinite) return notFinite(number, offset);
          return copy.error();
        });
  }
  return storePromise<Result<ReadView>>(
             shard,
             [&](ShardStorage::ReadDone done) { shard.storage().fetch(lane, onDevice, std::move(done)); })
      .then([number, offset](Result<ReadView> copy) -> Result<OwnGradient> {
        if (!copy.ok()) return copy.error();
        PSD_RETURN_IF_ERROR(checkFinite(number, offset, copy->values));
        return OwnGradient{Gradient(copy->values), std::move(copy->owner)};
      });
}

}  // namespace psd
