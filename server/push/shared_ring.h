#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "common/budget/byte_budget.h"
#include "common/os/shared_memory.h"
#include "server/config/daemon_config.h"

namespace psd {

/// Memory that the daemon shares with one trainer of the same machine, who lays gradients in it and announces
/// where, and says where rows that it pulls are to be written. The trainer keeps its books and may write at
/// any time, so also while it is read here: what is read twice may differ. Nothing but values of a gradient
/// may be taken from it, never an index or a length. Thread-safe.
class SharedRing {
 public:
  /// Zeroed. Takes its size from `all` and its descriptor from `files` for as long as its memory lives, which
  /// others may keep. ErrorCode::invalidArgument when limits.ring_bytes does not allow it,
  /// ErrorCode::overloaded when `all`, `files` or the system does not.
  static Result<std::unique_ptr<SharedRing>> make(uint64_t bytes, const Limits& limits, ByteBudget& all,
                                                  ByteBudget& files);

  const std::shared_ptr<SharedMemory>& memory() const { return memory_; }

  /// `count` floats at byte `at`. ErrorCode::badSlice when they do not lie in it, or not at a multiple of the
  /// layout's grain (64 bytes).
  Result<std::span<float>> floatsAt(uint64_t at, uint64_t count) const;

 private:
  explicit SharedRing(std::shared_ptr<SharedMemory> memory) : memory_(std::move(memory)) {}

  const std::shared_ptr<SharedMemory> memory_;
};

}  // namespace psd
