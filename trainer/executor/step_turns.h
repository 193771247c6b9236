#pragma once

#include <memory>

#include <kj/async.h>

#include "trainer/executor/call_queue.h"

namespace psd {

/// Serializes training steps under `exclusive`: one turn at a time. Owned by the event loop's thread; turns
/// may outlive it.
class StepTurns {
 public:
  using Turn = std::shared_ptr<const void>;

  /// If not `exclusive`, take() resolves at once.
  StepTurns(bool exclusive, std::chrono::milliseconds age)
      : exclusive_(exclusive), state_(std::make_shared<State>(age)) {}

  /// Resolves to a turn, which lasts until it is destroyed. Waiters are served in the order of a CallQueue.
  kj::Promise<Turn> take(int8_t priority) {
    if (!exclusive_) return Turn();
    if (!state_->taken) return state_->give();
    auto waiting = kj::newPromiseAndFulfiller<Turn>();
    state_->queue.add(
        {priority, CallKind::forward, CallQueue<Waiter>::Clock::now(), 0, kj::mv(waiting.fulfiller)});
    return kj::mv(waiting.promise);
  }

 private:
  using Waiter = kj::Own<kj::PromiseFulfiller<Turn>>;

  struct State : std::enable_shared_from_this<State> {
    explicit State(std::chrono::milliseconds age) : queue(age) {}
    Turn give() {
      taken = true;
      return {nullptr, [self = shared_from_this()](const void*) { self->pass(); }};
    }
    void pass() {
      taken = false;
      while (!taken && !queue.empty()) {
        Waiter next = queue.take(CallQueue<Waiter>::Clock::now()).payload;
        if (next->isWaiting()) next->fulfill(give());
      }
    }

    CallQueue<Waiter> queue;
    bool taken = false;
  };

  const bool exclusive_;
  const std::shared_ptr<State> state_;
};

}  // namespace psd
