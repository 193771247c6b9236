#pragma once

// Plain C++ and no third-party header: .cu files include this.

#include <cstddef>
#include <cstdint>
#include <span>

namespace psd {

/// Granularity of shareable device memory. Mapping a part of a unit maps the whole unit, and lets the peer
/// write to everything in it ("Interprocess Communication" in the CUDA C++ Programming Guide).
inline constexpr uint64_t kSharedUnitBytes = uint64_t{2} << 20;

/// Rounds `bytes` up to whole units.
inline constexpr uint64_t inSharedUnits(uint64_t bytes) {
  return (bytes + kSharedUnitBytes - 1) / kSharedUnitBytes * kSharedUnitBytes;
}

/// Device memory that one other process on this machine may map and then read and write at any time, also
/// while this process reads it. Only values may be read from it, never indices or pointers. Thread-safe.
/// Destroy it only when no operation on it is in progress; on CUDA, destruction waits for the device.
class SharedDeviceMemory {
 public:
  virtual ~SharedDeviceMemory() = default;
  /// The handle with which the other process maps the memory: on CUDA a cudaIpcMemHandle_t.
  virtual std::span<const std::byte> handle() const = 0;
  /// The whole memory, initially zero; not readable by the host.
  virtual std::span<float> floats() const = 0;
};

}  // namespace psd
