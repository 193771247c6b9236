#pragma once

// Plain C++ and no third-party header: .cu files include this.

#include <cstddef>
#include <cstdint>
#include <span>

namespace psd {

/// Devices give memory that can be shared in units of so many bytes. Who maps a part of a unit maps it whole,
/// and could write to whatever else lies in it ("Interprocess Communication" in the CUDA C++ Programming
/// Guide).
inline constexpr uint64_t kSharedUnitBytes = uint64_t{2} << 20;

/// How much memory so many shared bytes take.
inline constexpr uint64_t inSharedUnits(uint64_t bytes) {
  return (bytes + kSharedUnitBytes - 1) / kSharedUnitBytes * kSharedUnitBytes;
}

/// Memory of a device that one other process of this machine may map, and then read and write at any time,
/// also while it is read here. Nothing but values may be taken from it. Thread-safe; to be destroyed when no
/// operation on it is under way, which on CUDA waits for the device.
class SharedDeviceMemory {
 public:
  virtual ~SharedDeviceMemory() = default;
  /// The handle by which the other process maps the memory: on CUDA a cudaIpcMemHandle_t.
  virtual std::span<const std::byte> handle() const = 0;
  /// All of the memory, zeroed at first; not readable by the host.
  virtual std::span<float> floats() const = 0;
};

}  // namespace psd
