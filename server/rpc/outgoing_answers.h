#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

#include "server/limits/memory_budgets.h"
#include "server/metrics/steady_clock.h"

namespace psd {

/// Counts answers in limits.all_outgoing_bytes before they are made. Thread-safe; outlives the
/// loops.
class OutgoingAnswers {
 public:
  explicit OutgoingAnswers(MemoryBudgets& budgets) : budgets_(budgets) {}

  /// Whether `bytes` more fit in `most`; an answer larger than `most` fits if nothing else is counted. Notes
  /// a shortage.
  bool fits(uint64_t bytes, uint64_t most) {
    if (budgets_.outgoing.load() + std::min(bytes, most) <= most) return true;
    shortAt_ = steadyMs();
    return false;
  }
  /// Counts an answer outside a Connection until the result is destroyed; null: there is no room for it.
  /// Small answers are counted and never refused.
  std::shared_ptr<const void> take(uint64_t bytes, uint64_t most) {
    if (bytes > kSmallBytes && !fits(bytes, most)) return nullptr;
    budgets_.outgoing += bytes;
    return {this, [this, bytes](const void*) { budgets_.outgoing -= bytes; }};
  }
  /// Whether an answer was refused within kShortageMs.
  bool isShort() const {
    const uint64_t at = shortAt_;
    return at != 0 && steadyMs() - at <= kShortageMs;
  }

 private:
  static constexpr uint64_t kSmallBytes = 64u << 10;
  static constexpr uint64_t kShortageMs = 500;  // callers that wait ask again before that

  MemoryBudgets& budgets_;
  std::atomic<uint64_t> shortAt_{0};  // of steadyMs(); 0: never
};

}  // namespace psd
