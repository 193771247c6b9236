#pragma once

// Plain C++ and no third-party header: .cu files include this.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "common/status/status.h"

namespace psd {

/// Reusable host buffers for copies on their way out or in. Fresh pages cost more than the copies.
///
/// Thread-safe. A buffer keeps its pool alive, so the pool may be let go first. Giving a buffer
/// back only puts it on a list; memory is released in acquire() and with the pool, so that threads
/// on which releasing is not allowed (the CUDA driver's) may drop buffers while somebody else holds
/// the pool.
class StagingPool : public std::enable_shared_from_this<StagingPool> {
 public:
  /// Where the memory comes from; allocate answers null when there is none.
  struct Memory {
    void* (*allocate)(size_t bytes);
    void (*release)(void* memory);
  };
  /// Ordinary memory of this machine.
  static Memory hostMemory();
  struct Limits {
    uint64_t lentBytesMax;  ///< a buffer beyond it is refused, unless it would be the only one
    uint64_t idleBytesMax;  ///< kept when what is asked for next is of another size
  };

  static std::shared_ptr<StagingPool> make(Memory memory, Limits limits);
  ~StagingPool();
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;

  /// Room for `count` floats, 64-byte aligned, contents undefined; returned to the pool when the
  /// last copy of the pointer goes. ErrorCode::overloaded, naming the bytes, when there is none.
  Result<std::shared_ptr<float>> acquire(uint64_t count);
  void setLentBytesMax(uint64_t bytes);
  /// Bytes in buffers that somebody holds.
  uint64_t lentBytes() const;

 private:
  struct Buffer {
    void* data = nullptr;
    uint64_t bytes = 0;
  };

  StagingPool(Memory memory, Limits limits) : memory_(memory), limits_(limits) {}
  /// An idle buffer of at least `bytes` that does not waste more than half; null when none fits.
  Buffer takeIdle(uint64_t bytes);
  /// Takes buffers off the idle list until at most `bytes` are left on it.
  std::vector<Buffer> takeIdleBeyond(uint64_t bytes);
  void release(const std::vector<Buffer>& buffers);
  void releaseIdle();
  void giveBack(Buffer buffer);

  const Memory memory_;
  // Guards all below. Never held while memory is allocated or released: CUDA may wait there for its
  // driver's thread, which may be giving a buffer back.
  mutable std::mutex mutex_;
  Limits limits_;
  std::vector<Buffer> idle_;
  uint64_t idleBytes_ = 0;
  uint64_t lentBytes_ = 0;
};

/// Room for a gradient of `count` elements that waits to be applied, in a pool that limits.staged_bytes
/// bounds; the error names that.
Result<std::shared_ptr<float>> acquireForGradient(StagingPool& pool, uint64_t count);

}  // namespace psd
