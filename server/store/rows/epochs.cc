#include "server/store/rows/epochs.h"

#include <algorithm>
#include <functional>
#include <thread>

namespace psd {
namespace {

/// The slot that a thread's guards try first, most likely the one they used last, in their core's cache.
uint32_t preferredSlot() {
  return static_cast<uint32_t>(std::hash<std::thread::id>{}(std::this_thread::get_id()) % Epochs::kGuardsMax);
}

}  // namespace

// Why a guard protects what it can reach: passed() reads each slot with a read-modify-write. If that precedes
// the guard's own in the slot's modification order, the guard synchronizes with it and sees as unreachable
// everything that was made unreachable before the stamp. If it follows, it sees the guard's epoch, which is
// not above the stamp unless the guard read `now_` after stamp() had changed it, and then the guard sees the
// same. An idle slot that it reads was stored by a guard that ended, whose reads are complete.

std::atomic<uint64_t>& Epochs::enter() {
  for (uint32_t tries = 0;; ++tries) {
    std::atomic<uint64_t>& epoch = places_[(preferredSlot() + tries) % kGuardsMax].epoch;
    uint64_t expected = kIdle;
    if (epoch.load(std::memory_order_relaxed) == kIdle &&
        epoch.compare_exchange_strong(expected, now_.load(std::memory_order_seq_cst),
                                      std::memory_order_seq_cst)) {
      return epoch;
    }
    if (tries % kGuardsMax == kGuardsMax - 1) std::this_thread::yield();
  }
}

bool Epochs::passed(uint64_t stamp) {
  if (stamp < passedBefore_.load(std::memory_order_acquire)) return true;
  uint64_t oldest = now_.load(std::memory_order_seq_cst);
  for (Place& place : places_) {
    const uint64_t epoch = place.epoch.fetch_add(0, std::memory_order_seq_cst);
    if (epoch != kIdle) oldest = std::min(oldest, epoch);
  }
  // Several writers may be here; the bound found by any of them remains valid.
  uint64_t known = passedBefore_.load(std::memory_order_relaxed);
  while (known < oldest && !passedBefore_.compare_exchange_weak(known, oldest, std::memory_order_acq_rel)) {
  }
  return stamp < oldest;
}

}  // namespace psd
