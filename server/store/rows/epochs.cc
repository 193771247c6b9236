#include "server/store/rows/epochs.h"

#include <algorithm>
#include <functional>
#include <thread>

namespace psd {
namespace {

/// Where a thread's guards most likely find the place free that was theirs before, in their core's cache.
uint32_t usualPlace() {
  return static_cast<uint32_t>(std::hash<std::thread::id>{}(std::this_thread::get_id()) % Epochs::kGuardsMax);
}

}  // namespace

// That a guard keeps what it can reach: passed() reads each place by a read-modify-write. If that comes
// before the guard's own in the order of the place's changes, the guard synchronises with it and sees
// everything out of reach that was taken out before the stamp. If it comes after, it sees the guard's epoch,
// which is not above the stamp unless the guard read `now_` after stamp() had changed it, and saw the same.
// An idle place that it reads was stored by a guard that ended, whose reads are done.

std::atomic<uint64_t>& Epochs::enter() {
  for (uint32_t tries = 0;; ++tries) {
    std::atomic<uint64_t>& epoch = places_[(usualPlace() + tries) % kGuardsMax].epoch;
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
  // Several writers may be here; what one of them found out stays true.
  uint64_t known = passedBefore_.load(std::memory_order_relaxed);
  while (known < oldest && !passedBefore_.compare_exchange_weak(known, oldest, std::memory_order_acq_rel)) {
  }
  return stamp < oldest;
}

}  // namespace psd
