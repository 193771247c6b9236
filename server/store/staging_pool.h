#pragma once

// Plain C++ and no third-party header: .cu files include this.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "common/status/status.h"

namespace psd {

/// Reusable host buffers for copies to and from a device. Touching fresh pages would cost more than the
/// copies.
///
/// Thread-safe. A buffer keeps its pool alive, so the owner may drop the pool first. Returning a buffer only
/// puts it on a list; memory is freed in acquire() and with the pool. Threads that must not free memory (the
/// CUDA driver's) may therefore drop buffers as long as another owner holds the pool.
class StagingPool : public std::enable_shared_from_this<StagingPool> {
 public:
  /// The allocator; `allocate` returns null if out of memory.
  struct Memory {
    void* (*allocate)(size_t bytes);
    void (*release)(void* memory);
    bool scarce = false;  ///< page-locked, for example: buffers cannot be transferred
  };
  /// Ordinary host memory.
  static Memory hostMemory();
  struct Limits {
    uint64_t lentBytesMax;  ///< buffers beyond it are rejected, unless no other is lent
    uint64_t idleBytesMax;  ///< idle bytes kept by acquire()
  };

  static std::shared_ptr<StagingPool> make(Memory memory, Limits limits);
  ~StagingPool();
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;

  /// A buffer of `count` floats, 64-byte aligned, contents undefined; returned to the pool with the last copy
  /// of the pointer. ErrorCode::overloaded, naming the bytes, if there is none.
  Result<std::shared_ptr<float>> acquire(uint64_t count);
  /// Makes the holder of a buffer account for it: the buffer no longer counts as lent. False if `owner` does
  /// not own a pool's buffer, or its memory is scarce.
  static bool transfer(const std::shared_ptr<const void>& owner);
  void setLentBytesMax(uint64_t bytes);
  /// Bytes in lent buffers.
  uint64_t lentBytes() const;

 private:
  struct Buffer {
    void* data = nullptr;
    uint64_t bytes = 0;
  };

  /// The deleter of a buffer's pointer.
  struct Return {
    std::shared_ptr<StagingPool> pool;
    Buffer buffer;
    bool lent = true;  // changed under the pool's mutex, and read by the last owner
    void operator()(float* values);
  };

  StagingPool(Memory memory, Limits limits) : memory_(memory), limits_(limits) {}
  /// An idle buffer of at least `bytes` that wastes at most half; null if none fits.
  Buffer takeIdle(uint64_t bytes);
  /// Removes buffers from the idle list until at most `bytes` remain.
  std::vector<Buffer> takeIdleBeyond(uint64_t bytes);
  void release(const std::vector<Buffer>& buffers);
  void releaseIdle();
  void returnBuffer(Buffer buffer, bool lent);

  const Memory memory_;
  // Guards all below. Not held while memory is allocated or freed: CUDA may then wait for its driver's
  // thread, which may be returning a buffer.
  mutable std::mutex mutex_;
  Limits limits_;
  std::vector<Buffer> idle_;
  uint64_t idleBytes_ = 0;
  uint64_t lentBytes_ = 0;
};

/// A buffer for a gradient of `count` elements that waits to be applied, from a pool limited by
/// limits.staged_bytes, which the error names.
Result<std::shared_ptr<float>> acquireForGradient(StagingPool& pool, uint64_t count);

}  // namespace psd
