#include "server/policy/gathered_gradient.h"

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

void GatheredGradient::put(uint64_t offset, const Gradient& slice) {
  slice.copyTo(0, {values_.get() + offset, slice.size()});
}

}  // namespace psd
