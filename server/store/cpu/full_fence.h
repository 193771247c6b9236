#pragma once

#include <atomic>
#include <cstdint>

namespace psd {

/// This thread's earlier writes are visible to all threads before its later reads are made.
inline void fullFence() {
#if defined(__SANITIZE_THREAD__)
  static std::atomic<uint32_t> any;  // ThreadSanitizer does not support fences
  any.fetch_add(1, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace psd
