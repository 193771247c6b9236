#include "server/move/command_heartbeats.h"

#include <utility>

namespace psd {
namespace {

constexpr int kMissedMax = 5;

}  // namespace

void CommandHeartbeats::watch(std::function<void()> lost) {
  missed_ = 0;
  watching_ = keepWatching(++watched_, std::move(lost)).eagerlyEvaluate(nullptr);
}

kj::Promise<void> CommandHeartbeats::keepWatching(uint64_t watched, std::function<void()> lost) {
  return timer_.afterDelay(kMoveHeartbeatInterval.count() * kj::MILLISECONDS)
      .then([this, watched, lost = std::move(lost)]() mutable -> kj::Promise<void> {
        if (watched != watched_) return kj::READY_NOW;
        if (++missed_ <= kMissedMax) return keepWatching(watched, std::move(lost));
        end();
        lost();
        return kj::READY_NOW;
      });
}

}  // namespace psd
