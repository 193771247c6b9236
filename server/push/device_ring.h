#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "common/budget/byte_budget.h"
#include "server/config/daemon_config.h"
#include "server/store/parameter_store.h"

namespace psd {

/// Memory of one device that the daemon shares with one trainer of the same machine, who keeps its books and
/// may write at any time: where the trainer lays gradients, and finds parameters that it pulls. Gradients
/// are copied out of it; all copies together are no larger than it is. Thread-safe. To be kept while the
/// device is at work on it.
class DeviceRing {
 public:
  /// Takes its size, in whole units of kSharedUnitBytes, from `all` for as long as it lives. `device`: as
  /// Shard::device() names it. ErrorCode::invalidArgument when there is no such device or limits.ring_bytes
  /// does not allow it, ErrorCode::overloaded when `all` or the device does not.
  static Result<std::shared_ptr<DeviceRing>> make(ParameterStore& store, uint32_t device, uint64_t bytes,
                                                  const Limits& limits, ByteBudget& all);

  /// What the trainer maps it by.
  std::span<const std::byte> handle() const { return memory_->handle(); }
  /// A share of the ring's size for the copy of a gradient of so many bytes. ErrorCode::overloaded when all
  /// is shared out, which no trainer sees that announces a place again only once that is answered.
  Result<ByteBudget::Lease> leaseCopy(uint64_t bytes) const;
  /// `count` floats at byte `at`, on the device. ErrorCode::badSlice as for SharedRing::floatsAt().
  Result<std::span<float>> floatsAt(uint64_t at, uint64_t count) const;

 private:
  DeviceRing(std::shared_ptr<SharedDeviceMemory> memory, ByteBudget::Lease lease)
      : memory_(std::move(memory)),
        lease_(std::move(lease)),
        copies_(ByteBudget::make(memory_->floats().size_bytes())) {}

  const std::shared_ptr<SharedDeviceMemory> memory_;
  const ByteBudget::Lease lease_;
  const std::shared_ptr<ByteBudget> copies_;
};

}  // namespace psd
