#include "common/wire/buffer_pool.h"

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

#include <sys/mman.h>

#include "common/os/huge_pages.h"

namespace psd::wire {
namespace {

constexpr size_t kSmallest = 4096;

size_t capacityOf(size_t bytes) { return std::bit_ceil(std::max(bytes, kSmallest)); }

std::byte* mapHuge(size_t capacity) {
  std::byte* const data = mapAtHugePage(capacity, MAP_NORESERVE);
  if (data == nullptr) throw std::bad_alloc();
  preferHugePages(data, capacity);
  return data;
}

void release(std::byte* data, size_t capacity) {
  if (capacity >= kHugePageBytes) {
    munmap(data, capacity);
  } else {
    std::free(data);
  }
}

}  // namespace

BufferPool::Buffer::Buffer(Buffer&& other) noexcept
    : pool_(std::move(other.pool_)),
      data_(std::exchange(other.data_, nullptr)),
      capacity_(std::exchange(other.capacity_, 0)) {}

BufferPool::Buffer& BufferPool::Buffer::operator=(Buffer&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(data_, other.data_);
  std::swap(capacity_, other.capacity_);
  return *this;
}

BufferPool::Buffer::~Buffer() {
  if (data_ != nullptr) pool_->returnBuffer(data_, capacity_);
}

std::shared_ptr<BufferPool> BufferPool::make(size_t heldBytesMax) {
  return std::shared_ptr<BufferPool>(new BufferPool(heldBytesMax));
}

BufferPool::~BufferPool() {
  for (auto& [capacity, buffers] : free_) {
    for (std::byte* buffer : buffers) release(buffer, capacity);
  }
}

BufferPool::Buffer BufferPool::take(size_t bytes) {
  Buffer buffer;
  buffer.capacity_ = capacityOf(bytes);
  auto& free = free_[buffer.capacity_];
  if (!free.empty()) {
    buffer.data_ = free.back();
    free.pop_back();
    heldBytes_ -= buffer.capacity_;
  } else if (buffer.capacity_ >= kHugePageBytes) {
    buffer.data_ = mapHuge(buffer.capacity_);
  } else {
    buffer.data_ = static_cast<std::byte*>(std::aligned_alloc(kSmallest, buffer.capacity_));
    if (buffer.data_ == nullptr) throw std::bad_alloc();
  }
  buffer.pool_ = shared_from_this();
  return buffer;
}

size_t BufferPool::memoryOf(size_t bytes) {
  const size_t capacity = capacityOf(bytes);
  return capacity >= kHugePageBytes ? capacity : bytes;
}

void BufferPool::returnBuffer(std::byte* data, size_t capacity) {
  if (heldBytes_ + capacity > heldBytesMax_) {
    release(data, capacity);
    return;
  }
  free_[capacity].push_back(data);
  heldBytes_ += capacity;
}

}  // namespace psd::wire
