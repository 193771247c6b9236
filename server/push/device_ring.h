#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "common/budget/byte_budget.h"
#include "server/config/daemon_config.h"
#include "server/store/parameter_store.h"

namespace psd {

/// A ring in the memory of one device, shared with one trainer on the same machine. The trainer places
/// gradients in it and receives pulled parameters through it; it manages the space and may write at any time.
/// Gradients are copied out before use; outstanding copies together never exceed the ring's size.
/// Thread-safe. Must outlive device work that uses it.
class DeviceRing {
 public:
  /// Leases its size, rounded up to whole kSharedUnitBytes, from `all` for its lifetime. `device`: numbered
  /// like Shard::device(). ErrorCode::invalidArgument if there is no such device or limits.ring_bytes does
  /// not allow the size, ErrorCode::overloaded if `all` or the device has no space.
  static Result<std::shared_ptr<DeviceRing>> make(ParameterStore& store, uint32_t device, uint64_t bytes,
                                                  const Limits& limits, ByteBudget& all);

  /// Handle with which the trainer maps the memory.
  std::span<const std::byte> handle() const { return memory_->handle(); }
  /// Reserves `bytes` of the ring's copy budget for the copy of a gradient. ErrorCode::overloaded if the
  /// budget is spent; a trainer that reuses a place only after its push was answered never sees this.
  Result<ByteBudget::Lease> leaseCopy(uint64_t bytes) const;
  /// `count` floats at byte `at`, in device memory. ErrorCode::badSlice as for SharedRing::floatsAt().
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
