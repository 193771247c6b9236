#include "trainer/client/api/row_memory.h"

#include <cstdlib>
#include <new>
#include <utility>

namespace psd {

void RowMemory::use(std::shared_ptr<RingBlocks> ring) {
  const std::lock_guard lock(mutex_);
  ring_ = std::move(ring);
}

RowMemory::Block RowMemory::takeInRing(uint64_t bytes) const {
  std::shared_ptr<RingBlocks> ring;
  {
    const std::lock_guard lock(mutex_);
    ring = ring_;
  }
  if (!ring) return {};
  return {ring->take(bytes), ring};
}

RowMemory::Block RowMemory::takeOnHeap(uint64_t bytes) {
  constexpr uint64_t kAlignment = 64;
  const uint64_t whole = bytes / kAlignment * kAlignment + kAlignment;
  std::shared_ptr<float> memory(static_cast<float*>(std::aligned_alloc(kAlignment, whole)), std::free);
  if (!memory) throw std::bad_alloc();
  return {std::move(memory), nullptr};
}

}  // namespace psd
