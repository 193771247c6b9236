#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <utility>
#include <vector>

#include <kj/async.h>

#include "common/status/status.h"
#include "common/types/ids.h"
#include "trainer/client/transport/slices.h"

namespace psd {

/// Sends the slices of pushes as they become ready: all of one push before any of the next, which the daemon
/// requires (a later step gives up what is unfinished of the one before), and with a bounded number
/// unanswered over all pushes. Belongs to one event loop.
class SliceQueue final : private kj::TaskSet::ErrorHandler {
 public:
  /// Sends one slice, by its index; what it gives is the answer. It lives until the push is done.
  using Send = std::function<kj::Promise<Status>(size_t slice)>;
  /// How many slices may be unanswered, asked for before each that is sent.
  using Window = std::function<size_t()>;

  SliceQueue() : answers_(*this) {}

  /// Adds a push of `slices` slices behind those that are there. Resolves when all are answered. After an
  /// error of one, or giveUp(), no further one is sent, and it resolves once those sent are answered.
  /// `window` slices are unanswered at most when one of these is sent.
  kj::Promise<Status> add(Step step, size_t slices, Window window, Send send);
  kj::Promise<Status> add(Step step, size_t slices, uint32_t window, Send send) {
    return add(step, slices, Window([window] { return window; }), std::move(send));
  }
  /// Slices of a push may be sent, each told once, in this order. Of a push that is done: nothing happens.
  void ready(Step step, const std::vector<size_t>& slices);
  void giveUp(Step step);
  /// How many slices a push has; 0 once it is done.
  size_t slicesOf(Step step);
  /// Sends nothing more, and every push resolves with `why` once what it sent is answered.
  void stopAll(const Error& why);

 private:
  struct Push {
    Step step;
    size_t slices;
    size_t unsent;
    Window window;
    Send send;
    kj::Own<kj::PromiseFulfiller<Status>> done;
    std::deque<size_t> ready;
    size_t unanswered = 0;
    bool stopped = false;  ///< sends nothing more
    Status status;
    kj::Maybe<kj::Exception> thrown;
  };
  using Place = std::list<Push>::iterator;

  Place find(Step step);
  void stop(Push& push, Status why);
  void sendOn();
  void sendOne(Place push);
  void answered(Place push);
  /// Resolves and forgets a push that has nothing left to do.
  void finishIfDone(Place push);
  void taskFailed(kj::Exception&&) override {}  // answers_ holds none that fails

  std::list<Push> pushes_;  // in the order of add()
  size_t unanswered_ = 0;   // slices
  kj::TaskSet answers_;
};

/// Calls `send` for every slice, from 0 on, with at most `window` unanswered at a time. After the first error
/// no further slice is sent; the promise resolves, with that error, once all that were sent are answered.
kj::Promise<Status> sendInWindow(size_t slices, SliceQueue::Window window, SliceQueue::Send send);
inline kj::Promise<Status> sendInWindow(size_t slices, uint32_t window, SliceQueue::Send send) {
  return sendInWindow(slices, SliceQueue::Window([window] { return window; }), std::move(send));
}
/// Calls `send` for each of these slices, which outlive the promise, as sendInWindow() does by number.
kj::Promise<Status> sendInWindow(const std::vector<Slice>& slices, SliceQueue::Window window,
                                 std::function<kj::Promise<Status>(const Slice&)> send);
inline kj::Promise<Status> sendInWindow(const std::vector<Slice>& slices, uint32_t window,
                                        std::function<kj::Promise<Status>(const Slice&)> send) {
  return sendInWindow(slices, SliceQueue::Window([window] { return window; }), std::move(send));
}

}  // namespace psd
