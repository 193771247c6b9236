#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include <kj/async.h>

namespace psd {

/// Bounds the bytes of answers that all pulls of a connection have asked for and not got, so that the daemon,
/// which holds them meanwhile, never refuses one. Calls begin in the order in which they come; one that is
/// larger than the room begins when nothing else is under way. Belongs to one event loop; calls may outlive
/// it.
class AnswerRoom {
 public:
  /// 0: no bound. Holds from the next call on.
  void setBytes(uint64_t bytes) { state_->most = bytes; }
  uint64_t underWay() const { return state_->underWay; }

  /// What `send()` promises, called when there is room for an answer of so many bytes: at once where there is
  /// now and nobody waits.
  template <class Send>
  auto call(uint64_t bytes, Send send) -> decltype(send()) {
    bytes += kEnvelopeBytes;
    if (state_->waiting.empty() && state_->has(bytes)) {
      auto lease = kj::heap<Lease>(state_, bytes);
      return kj::evalNow(std::move(send)).attach(kj::mv(lease));
    }
    auto turn = kj::newPromiseAndFulfiller<kj::Own<Lease>>();
    state_->waiting.push_back({bytes, kj::mv(turn.fulfiller)});
    return turn.promise.then([send = std::move(send)](kj::Own<Lease> lease) mutable {
      return kj::evalNow(std::move(send)).attach(kj::mv(lease));
    });
  }

 private:
  static constexpr uint64_t kEnvelopeBytes = 512;  // of an answer, around its values

  struct State;
  struct Lease {
    Lease(std::shared_ptr<State> of, uint64_t size) : state(std::move(of)), bytes(size) {
      state->underWay += bytes;
    }
    ~Lease() {
      state->underWay -= bytes;
      state->goOn();
    }
    Lease(const Lease&) = delete;
    const std::shared_ptr<State> state;
    const uint64_t bytes;
  };
  struct Waiter {
    uint64_t bytes;
    kj::Own<kj::PromiseFulfiller<kj::Own<Lease>>> turn;
  };
  struct State : std::enable_shared_from_this<State> {
    bool has(uint64_t bytes) const { return most == 0 || underWay == 0 || underWay + bytes <= most; }
    void goOn() {
      while (!waiting.empty()) {
        if (waiting.front().turn->isWaiting() && !has(waiting.front().bytes)) return;
        Waiter next = std::move(waiting.front());
        waiting.pop_front();
        // One that was given up meanwhile takes nothing.
        if (next.turn->isWaiting()) next.turn->fulfill(kj::heap<Lease>(shared_from_this(), next.bytes));
      }
    }

    uint64_t most = 0, underWay = 0;
    std::deque<Waiter> waiting;
  };

  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace psd
