#include "trainer/client/transport/slice_queue.h"

#include <algorithm>
#include <numeric>
#include <string>

namespace psd {

kj::Promise<Status> SliceQueue::add(Step step, size_t slices, Window window, Send send) {
  if (find(step) != pushes_.end()) {
    return Status(ErrorCode::invalidArgument,
                  "a push of step " + std::to_string(step.value) + " is under way already");
  }
  auto done = kj::newPromiseAndFulfiller<Status>();
  pushes_.push_back({step, slices, slices, std::move(window), std::move(send), kj::mv(done.fulfiller), {}});
  finishIfDone(std::prev(pushes_.end()));
  return kj::mv(done.promise);
}

void SliceQueue::ready(Step step, const std::vector<size_t>& slices) {
  const Place push = find(step);
  if (push == pushes_.end() || push->stopped) return;
  push->ready.insert(push->ready.end(), slices.begin(), slices.end());
  sendOn();
}

void SliceQueue::giveUp(Step step) {
  const Place push = find(step);
  if (push == pushes_.end()) return;
  stop(*push, {ErrorCode::invalidArgument, "the push was given up"});
  finishIfDone(push);
  sendOn();
}

size_t SliceQueue::slicesOf(Step step) {
  const Place push = find(step);
  return push == pushes_.end() ? 0 : push->slices;
}

void SliceQueue::stopAll(const Error& why) {
  for (Place push = pushes_.begin(); push != pushes_.end();) {
    const Place next = std::next(push);  // finishing erases the push
    stop(*push, why);
    finishIfDone(push);
    push = next;
  }
}

SliceQueue::Place SliceQueue::find(Step step) {
  return std::find_if(pushes_.begin(), pushes_.end(), [&](const Push& push) { return push.step == step; });
}

void SliceQueue::stop(Push& push, Status why) {
  if (push.status.ok()) push.status = std::move(why);
  push.stopped = true;
  push.ready.clear();
}

void SliceQueue::sendOn() {
  for (Place push = pushes_.begin(); push != pushes_.end(); ++push) {
    while (!push->ready.empty() && unanswered_ < std::max<size_t>(push->window(), 1)) sendOne(push);
    if (push->unsent > 0 && !push->stopped) return;
  }
}

void SliceQueue::sendOne(Place push) {
  const size_t slice = push->ready.front();
  push->ready.pop_front();
  --push->unsent;
  ++push->unanswered;
  ++unanswered_;
  answers_.add(kj::evalNow([&] { return push->send(slice); })
                   .then(
                       [this, push](Status status) {
                         if (!status.ok()) stop(*push, std::move(status));
                         answered(push);
                       },
                       [this, push](kj::Exception&& exception) {
                         stop(*push, {ErrorCode::unavailable, "the connection broke"});
                         if (push->thrown == nullptr) push->thrown = kj::mv(exception);
                         answered(push);
                       }));
}

void SliceQueue::answered(Place push) {
  --push->unanswered;
  --unanswered_;
  finishIfDone(push);
  sendOn();
}

void SliceQueue::finishIfDone(Place push) {
  if (push->unanswered > 0 || (push->unsent > 0 && !push->stopped)) return;
  KJ_IF_MAYBE (exception, push->thrown) {
    push->done->reject(kj::mv(*exception));
  } else {
    push->done->fulfill(kj::mv(push->status));
  }
  pushes_.erase(push);
}

kj::Promise<Status> sendInWindow(size_t slices, SliceQueue::Window window, SliceQueue::Send send) {
  auto queue = kj::heap<SliceQueue>();
  auto sent = queue->add(Step{}, slices, std::move(window), std::move(send));
  std::vector<size_t> all(slices);
  std::iota(all.begin(), all.end(), size_t{0});
  queue->ready(Step{}, all);
  return sent.attach(kj::mv(queue));
}

kj::Promise<Status> sendInWindow(const std::vector<Slice>& slices, SliceQueue::Window window,
                                 std::function<kj::Promise<Status>(const Slice&)> send) {
  return sendInWindow(slices.size(), std::move(window),
                      [&slices, send = std::move(send)](size_t index) { return send(slices[index]); });
}

}  // namespace psd
