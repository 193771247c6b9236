#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

namespace psd::wire {

/// Free lists of receive buffers, one per power of two. A page fault costs more than the copy into the page,
/// so buffers are reused. Buffers of 2 MiB and more are mapped lazily with huge pages: an announced size
/// costs no memory until bytes arrive. Owned by one event loop's thread; ownership is shared because messages
/// outlive connections.
class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  /// A buffer that returns to its pool when destroyed. Movable.
  class Buffer {
   public:
    Buffer() = default;
    Buffer(Buffer&& other) noexcept;
    Buffer& operator=(Buffer&& other) noexcept;
    ~Buffer();
    std::byte* data() const { return data_; }
    size_t capacity() const { return capacity_; }

   private:
    friend class BufferPool;
    std::shared_ptr<BufferPool> pool_;
    std::byte* data_ = nullptr;
    size_t capacity_ = 0;
  };

  /// Keeps at most `heldBytesMax` bytes in its free lists.
  static std::shared_ptr<BufferPool> make(size_t heldBytesMax);
  ~BufferPool();

  /// A buffer of at least `bytes`, 4 KiB aligned, uninitialized. Throws std::bad_alloc.
  Buffer take(size_t bytes);
  /// Upper bound of the physical memory of a buffer of at least `bytes` once `bytes` are written: with huge
  /// pages the whole buffer.
  static size_t memoryOf(size_t bytes);

 private:
  explicit BufferPool(size_t heldBytesMax) : heldBytesMax_(heldBytesMax) {}
  void returnBuffer(std::byte* data, size_t capacity);

  size_t heldBytesMax_;
  size_t heldBytes_ = 0;
  std::map<size_t, std::vector<std::byte*>> free_;
};

}  // namespace psd::wire
