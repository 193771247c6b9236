#include "server/service/trainer_rings.h"

#include <spdlog/fmt/fmt.h>

namespace psd {

Result<std::shared_ptr<SharedMemory>> TrainerRings::open(uint64_t bytes) {
  if (host_) return Error{ErrorCode::invalidArgument, "this trainer has already opened its ring"};
  const MemoryBudgets& budgets = loop_.environment().budgets;
  PSD_ASSIGN_OR_RETURN(host_,
                       SharedRing::make(bytes, loop_.config().limits, *budgets.rings, *budgets.ringFiles));
  return host_->memory();
}

Result<std::shared_ptr<DeviceRing>> TrainerRings::openOnDevice(uint32_t device, uint64_t bytes) {
  if (device < onDevice_.size() && onDevice_[device]) {
    return Error{ErrorCode::invalidArgument,
                 fmt::format("this trainer has already opened its ring on device {}", device)};
  }
  PSD_ASSIGN_OR_RETURN(auto ring, DeviceRing::make(*model_->store, device, bytes, loop_.config().limits,
                                                   *loop_.environment().budgets.rings));
  onDevice_.resize(model_->store->deviceCount());
  return onDevice_[device] = std::move(ring);
}

Result<const SharedRing*> TrainerRings::host() const {
  if (host_) return host_.get();
  return Error{ErrorCode::invalidArgument, "this trainer has not opened a ring"};
}

Result<std::shared_ptr<DeviceRing>> TrainerRings::onDeviceOf(uint32_t shard) const {
  if (shard >= model_->store->shardCount()) {
    return Error{ErrorCode::badSlice, fmt::format("shard {}: there are {} shards, numbered from 0", shard,
                                                  model_->store->shardCount())};
  }
  const size_t device = model_->store->shard(shard).device();
  if (device < onDevice_.size() && onDevice_[device]) return onDevice_[device];
  return Error{ErrorCode::invalidArgument,
               fmt::format("this trainer has not opened a ring on device {}", device)};
}

}  // namespace psd
