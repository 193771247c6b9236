#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "common/os/shared_memory.h"

namespace psd {

/// Blocks of the memory that this process shares with a daemon, for values that travel from and to where they
/// lie. Thread-safe. The memory stays mapped as long as a block of it is kept, also when the connection is
/// gone that it was of: but nothing new is put there then, since the daemon may still come to write it.
class RingBlocks : public std::enable_shared_from_this<RingBlocks> {
 public:
  /// Bytes of `ring` from `begin`, a multiple of 64, on.
  RingBlocks(std::shared_ptr<SharedMemory> ring, uint64_t begin, uint64_t bytes);

  /// A block of so many bytes, given back with the pointer; null where there is no room, or this is closed.
  std::shared_ptr<float> take(uint64_t bytes);
  /// The connection is gone: no block is given any more.
  void close();
  bool closed() const;
  /// Byte of the ring at which these values begin; nothing where they lie elsewhere, or not at a multiple of
  /// 64.
  std::optional<uint64_t> placeOf(std::span<const float> values) const;

 private:
  void giveBack(uint64_t at);

  const std::shared_ptr<SharedMemory> ring_;
  const uint64_t begin_, end_;  // bytes of the ring
  mutable std::mutex mutex_;
  std::map<uint64_t, uint64_t> taken_;  // end by begin, bytes of the ring
  bool closed_ = false;
};

}  // namespace psd
