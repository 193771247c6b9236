#pragma once

#include <memory>

#include <kj/async.h>

#include "trainer/executor/call_queue.h"

namespace psd {

/// Whose training step it is, where one at a time may be under way. Owned by the event loop's thread; turns
/// may outlive it.
class StepTurns {
 public:
  using Turn = std::shared_ptr<const void>;

  /// Not `exclusive`: everybody has a turn at once.
  StepTurns(bool exclusive, std::chrono::milliseconds age)
      : exclusive_(exclusive), state_(std::make_shared<State>(age)) {}

  /// Resolves with a turn, which lasts until it goes; in the order of a CallQueue.
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
