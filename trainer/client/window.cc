#include "trainer/client/window.h"

#include <algorithm>

namespace psd {
namespace {

struct Progress {
  const std::vector<Slice>& slices;
  std::function<kj::Promise<Status>(const Slice&)> send;
  size_t next = 0;
  Status status;
};

/// One place of the window: sends a slice, waits for its answer, goes on with the next.
kj::Promise<void> runPlace(std::shared_ptr<Progress> progress) {
  if (progress->next >= progress->slices.size() || !progress->status.ok()) return kj::READY_NOW;
  const Slice& slice = progress->slices[progress->next++];
  return progress->send(slice).then([progress](Status status) -> kj::Promise<void> {
    if (!status.ok()) {
      if (progress->status.ok()) progress->status = std::move(status);
      return kj::READY_NOW;
    }
    return runPlace(progress);
  });
}

}  // namespace

kj::Promise<Status> sendInWindow(const std::vector<Slice>& slices, uint32_t window,
                                 std::function<kj::Promise<Status>(const Slice&)> send) {
  auto progress = std::make_shared<Progress>(Progress{slices, std::move(send), 0, {}});
  size_t places = std::min<size_t>(std::max<uint32_t>(window, 1), slices.size());
  auto running = kj::heapArrayBuilder<kj::Promise<void>>(places);
  for (size_t i = 0; i < places; i++) {
    // joinPromises() is lazy: without this, no answer is looked at before the last one is in.
    running.add(runPlace(progress).eagerlyEvaluate(nullptr));
  }
  return kj::joinPromises(running.finish()).then([progress] { return progress->status; });
}

}  // namespace psd
