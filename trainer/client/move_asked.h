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
  /// The move was dealt with, or the connection is another one.
  void forget() { move_ = 0; }
  /// 0: there is none.
  uint64_t move() const { return move_; }
  uint32_t daemons() const { return daemons_; }

 private:
  std::atomic<uint64_t> move_{0};
  std::atomic<uint32_t> daemons_{0};
};

}  // namespace psd
