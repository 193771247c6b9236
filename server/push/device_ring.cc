#include "server/push/device_ring.h"

#include <string>

#include "server/push/ring_rules.h"

namespace psd {

Result<std::shared_ptr<DeviceRing>> DeviceRing::make(ParameterStore& store, uint32_t device, uint64_t bytes,
                                                     const Limits& limits, ByteBudget& all) {
  if (device >= store.deviceCount()) {
    return Error{ErrorCode::invalidArgument, "no ring on device " + std::to_string(device) + ": there are " +
                                                 std::to_string(store.deviceCount()) + ", numbered from 0"};
  }
  PSD_ASSIGN_OR_RETURN(auto lease, leaseRing(bytes, inSharedUnits(bytes), limits, all));
  PSD_ASSIGN_OR_RETURN(auto memory, store.shareDeviceMemory(device, bytes));
  return std::shared_ptr<DeviceRing>(new DeviceRing(std::move(memory), std::move(lease)));
}

Result<ByteBudget::Lease> DeviceRing::leaseCopy(uint64_t bytes) const {
  auto lease = copies_->tryTake(bytes);
  if (lease) return std::move(*lease);
  return Error{ErrorCode::overloaded, "more gradients are announced than the device ring holds"};
}

Result<std::span<float>> DeviceRing::floatsAt(uint64_t at, uint64_t count) const {
  const std::span<float> floats = memory_->floats();
  PSD_RETURN_IF_ERROR(checkPlaceInRing(at, count, floats.size_bytes()));
  return floats.subspan(at / sizeof(float), count);
}

}  // namespace psd
