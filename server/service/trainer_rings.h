#pragma once

#include <memory>
#include <vector>

#include "server/loop/event_loop.h"
#include "server/push/device_ring.h"
#include "server/push/shared_ring.h"

namespace psd {

/// The rings of one trainer's session: one in host memory and one on each device. Each is opened at most once
/// and freed with the session. Belongs to an event loop.
class TrainerRings {
 public:
  TrainerRings(EventLoop& loop, std::shared_ptr<ServedModel> model) : loop_(loop), model_(std::move(model)) {}

  /// Opens the host ring, for pushed gradients and pulled rows.
  Result<std::shared_ptr<SharedMemory>> open(uint64_t bytes);
  Result<std::shared_ptr<DeviceRing>> openOnDevice(uint32_t device, uint64_t bytes);

  /// The host ring; ErrorCode::invalidArgument if it was not opened.
  Result<const SharedRing*> host() const;
  /// The ring on the shard's device.
  Result<std::shared_ptr<DeviceRing>> onDeviceOf(uint32_t shard) const;

 private:
  EventLoop& loop_;
  const std::shared_ptr<ServedModel> model_;
  std::unique_ptr<SharedRing> host_;                   // once opened
  std::vector<std::shared_ptr<DeviceRing>> onDevice_;  // by device, once opened
};

}  // namespace psd
