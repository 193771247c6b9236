#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

#include "server/limits/memory_budgets.h"
#include "server/metrics/steady_clock.h"

namespace psd {

/// Counts answers against limits.all_outgoing_bytes before they are built. Thread-safe; outlives the loops.
class OutgoingAnswers {
 public:
  explicit OutgoingAnswers(MemoryBudgets& budgets) : budgets_(budgets) {}

  /// Whether `bytes` more fit in `most`; an answer larger than `most` fits if nothing else is counted.
  /// Otherwise records a shortage.
  bool fits(uint64_t bytes, uint64_t most) {
    if (budgets_.outgoing.load() + std::min(bytes, most) <= most) return true;
    shortAt_ = steadyMs();
    return false;
  }
  /// Counts an answer outside a Connection until the result is destroyed; null if it does not fit. Small
  /// answers are counted but never rejected.
  std::shared_ptr<const void> take(uint64_t bytes, uint64_t most) {
    if (bytes > kSmallBytes && !fits(bytes, most)) return nullptr;
    budgets_.outgoing += bytes;
    return {this, [this, bytes](const void*) { budgets_.outgoing -= bytes; }};
  }
  /// Whether an answer was rejected within kShortageMs.
  bool isShort() const {
    const uint64_t at = shortAt_;
    return at != 0 && steadyMs() - at <= kShortageMs;
  }

 private:
  static constexpr uint64_t kSmallBytes = 64u << 10;
  static constexpr uint64_t kShortageMs = 500;  // waiting callers retry sooner

  MemoryBudgets& budgets_;
  std::atomic<uint64_t> shortAt_{0};  // of steadyMs(); 0: never
};

}  // namespace psd
