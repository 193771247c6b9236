#pragma once

#include <atomic>
#include <cstdint>

namespace psd {

/// A pending move of the model to other daemons: set by a connection's I/O thread, read by threads
/// that make calls. Thread-safe.
class PendingMove final {
 public:
  /// Move number `move`, to `daemons` daemons, is about to start.
  void set(uint64_t move, uint32_t daemons) {
    daemons_ = daemons;
    move_ = move;
  }
  /// The connection has changed.
  void forget() { move_ = 0; }
  /// Clears that move after it was handled; a newer one stays.
  void forget(uint64_t move) { move_.compare_exchange_strong(move, 0); }
  /// 0: none.
  uint64_t move() const { return move_; }
  uint32_t daemons() const { return daemons_; }

 private:
  std::atomic<uint64_t> move_{0};
  std::atomic<uint32_t> daemons_{0};
};

}  // namespace psd
