#pragma once

#include <atomic>
#include <cstdint>

namespace psd {

/// What a connection's I/O thread was told of a move of the model to other daemons, for the client's thread.
/// Thread-safe.
class MoveAsked final {
 public:
  /// A move of that number is about to begin, to so many daemons.
  void tell(uint64_t move, uint32_t daemons) {
    daemons_ = daemons;
    move_ = move;
  }
  /// The connection is another one.
  void forget() { move_ = 0; }
  /// That move was dealt with; a newer one stays.
  void forget(uint64_t move) { move_.compare_exchange_strong(move, 0); }
  /// 0: there is none.
  uint64_t move() const { return move_; }
  uint32_t daemons() const { return daemons_; }

 private:
  std::atomic<uint64_t> move_{0};
  std::atomic<uint32_t> daemons_{0};
};

}  // namespace psd
