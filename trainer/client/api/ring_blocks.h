#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "common/os/shared_memory.h"

namespace psd {

/// Allocates blocks in the memory that this process shares with a daemon, for values that travel directly
/// from and to the block. Thread-safe. The memory stays mapped as long as a block of it exists, also after
/// its connection has ended; no new block is allocated then, since the daemon may still write there.
class RingBlocks : public std::enable_shared_from_this<RingBlocks> {
 public:
  /// Uses `bytes` of `ring` from `begin`, a multiple of 64.
  RingBlocks(std::shared_ptr<SharedMemory> ring, uint64_t begin, uint64_t bytes);

  /// Allocates a block of `bytes`, freed with the pointer; null if there is no space, or after close().
  std::shared_ptr<float> take(uint64_t bytes);
  /// The connection has ended: no more blocks are allocated.
  void close();
  bool closed() const;
  /// Byte offset of these values in the ring; empty if they lie elsewhere, or not at a multiple of 64.
  std::optional<uint64_t> placeOf(std::span<const float> values) const;

 private:
  void release(uint64_t at);

  const std::shared_ptr<SharedMemory> ring_;
  const uint64_t begin_, end_;  // bytes of the ring
  mutable std::mutex mutex_;
  std::map<uint64_t, uint64_t> taken_;  // end by begin, bytes of the ring
  bool closed_ = false;
};

}  // namespace psd
