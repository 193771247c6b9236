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

/// Sends the slices of pushes as they become ready: all of one push before any of the next, as the daemon
/// requires (a later step drops what is unfinished of the previous one), and with a limit on unanswered
/// slices of all pushes together. Belongs to one event loop.
class SliceQueue final : private kj::TaskSet::ErrorHandler {
 public:
  /// Sends one slice, given by its index; resolves with the answer. Kept until the push is done.
  using Send = std::function<kj::Promise<Status>(size_t slice)>;
  /// The limit on unanswered slices, called before each send.
  using Window = std::function<size_t()>;

  SliceQueue() : answers_(*this) {}

  /// Appends a push of `slices` slices. Resolves when all are answered. After an error, or giveUp(), no more
  /// are sent, and it resolves once those sent are answered. A slice of this push is sent while fewer than
  /// `window` slices are unanswered.
  kj::Promise<Status> add(Step step, size_t slices, Window window, Send send);
  kj::Promise<Status> add(Step step, size_t slices, uint32_t window, Send send) {
    return add(step, slices, Window([window] { return window; }), std::move(send));
  }
  /// Slices of a push may be sent, each reported once, in this order. Ignored if the push is done.
  void ready(Step step, const std::vector<size_t>& slices);
  void giveUp(Step step);
  /// Number of slices of a push; 0 once it is done.
  size_t slicesOf(Step step);
  /// Sends nothing more; every push resolves with `why` once its sent slices are answered.
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
  /// Resolves and removes a push that is complete.
  void finishIfDone(Place push);
  void taskFailed(kj::Exception&&) override {}  // the tasks in answers_ do not fail

  std::list<Push> pushes_;  // in the order of add()
  size_t unanswered_ = 0;   // slices
  kj::TaskSet answers_;
};

/// Calls `send` for every slice, from 0, with at most `window` unanswered. After the first error no more
/// slices are sent; the promise resolves with that error once all sent slices are answered.
kj::Promise<Status> sendInWindow(size_t slices, SliceQueue::Window window, SliceQueue::Send send);
inline kj::Promise<Status> sendInWindow(size_t slices, uint32_t window, SliceQueue::Send send) {
  return sendInWindow(slices, SliceQueue::Window([window] { return window; }), std::move(send));
}
/// Calls `send` for each of these slices, which outlive the promise, with the same window.
kj::Promise<Status> sendInWindow(const std::vector<Slice>& slices, SliceQueue::Window window,
                                 std::function<kj::Promise<Status>(const Slice&)> send);
inline kj::Promise<Status> sendInWindow(const std::vector<Slice>& slices, uint32_t window,
                                        std::function<kj::Promise<Status>(const Slice&)> send) {
  return sendInWindow(slices, SliceQueue::Window([window] { return window; }), std::move(send));
}

}  // namespace psd
