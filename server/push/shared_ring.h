#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "common/budget/byte_budget.h"
#include "common/os/shared_memory.h"
#include "server/config/daemon_config.h"

namespace psd {

/// Memory shared with one trainer on the same machine. The trainer places gradients in it and announces their
/// offsets, and names the offsets where pulled rows are written. The trainer manages the space and may write
/// at any time, including while the daemon reads: two reads of a value may differ. Only gradient values may
/// be read from it, never an index or a length. Thread-safe.
class SharedRing {
 public:
  /// Zeroed. Leases its size from `all` and its descriptor from `files` for as long as the memory lives,
  /// which other owners may extend. ErrorCode::invalidArgument if limits.ring_bytes does not allow the size,
  /// ErrorCode::overloaded if `all`, `files` or the system is exhausted.
  static Result<std::unique_ptr<SharedRing>> make(uint64_t bytes, const Limits& limits, ByteBudget& all,
                                                  ByteBudget& files);

  const std::shared_ptr<SharedMemory>& memory() const { return memory_; }

  /// `count` floats at byte `at`. ErrorCode::badSlice if they are not within the ring, or not at a multiple
  /// of the layout's grain (64 bytes).
  Result<std::span<float>> floatsAt(uint64_t at, uint64_t count) const;

 private:
  explicit SharedRing(std::shared_ptr<SharedMemory> memory) : memory_(std::move(memory)) {}

  const std::shared_ptr<SharedMemory> memory_;
};

}  // namespace psd
