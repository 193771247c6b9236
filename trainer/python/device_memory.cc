#include "trainer/python/device_memory.h"

#include <algorithm>
#include <utility>

namespace psd::python {

Result<std::shared_ptr<DeviceMemory>> DeviceMemory::make(int device) {
  PSD_ASSIGN_OR_RETURN(auto copier, DeviceCopier::make(device));
  return std::shared_ptr<DeviceMemory>(new DeviceMemory(device, std::move(copier)));
}

CudaDevice DeviceMemory::device() const { return {index_, reinterpret_cast<uint64_t>(copier_->stream())}; }

DeviceMemory::Stand DeviceMemory::standIn(size_t count) {
  if (isClients_ || count == 0) return nullptr;
  const auto free = std::ranges::find_if(
      stands_, [count](const Stand& stand) { return stand.use_count() == 1 && stand->size() == count; });
  if (free != stands_.end()) return *free;
  stands_.push_back(std::make_shared<std::vector<float>>(count));
  return stands_.back();
}

std::span<const float> DeviceMemory::onHost(std::span<const float> array) {
  onHost_.resize(array.size());
  if (!array.empty() && !copy(onHost_, array).ok()) return {};
  return onHost_;
}

}  // namespace psd::python
