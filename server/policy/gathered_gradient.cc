#include "server/policy/gathered_gradient.h"

#include <string>

#include "common/types/finite.h"

namespace psd {
namespace {

constexpr uint64_t kIdleBytesMax = uint64_t{256} << 20;

}  // namespace

std::shared_ptr<StagingPool> makeGradientPool(uint64_t bytesMax) {
  return StagingPool::make(StagingPool::hostMemory(),
                           {.lentBytesMax = bytesMax, .idleBytesMax = kIdleBytesMax});
}

Result<GatheredGradient> GatheredGradient::make(StagingPool& pool, uint64_t elements) {
  GatheredGradient gathered;
  PSD_ASSIGN_OR_RETURN(gathered.values_, acquireForGradient(pool, elements));
  gathered.elements_ = elements;
  return gathered;
}

Status GatheredGradient::put(ShardId shard, uint64_t offset, const Gradient& slice) {
  const std::span<float> place(values_.get() + offset, slice.size());
  slice.copyTo(0, place);
  if (!slice.inSharedMemory() || allFinite(place)) return {};
  return {ErrorCode::nonFinite, "the slice at element " + std::to_string(offset) + " of shard " +
                                    std::to_string(shard.value) + " now holds NaN or infinity"};
}

}  // namespace psd
