#include "server/move/move_beats.h"

#include <utility>

namespace psd {
namespace {

constexpr int kMissedMax = 5;

}  // namespace

void MoveBeats::watch(std::function<void()> lost) {
  missed_ = 0;
  watching_ = keepWatching(++watched_, std::move(lost)).eagerlyEvaluate(nullptr);
}

kj::Promise<void> MoveBeats::keepWatching(uint64_t watched, std::function<void()> lost) {
  return timer_.afterDelay(kMoveBeat.count() * kj::MILLISECONDS)
      .then([this, watched, lost = std::move(lost)]() mutable -> kj::Promise<void> {
        if (watched != watched_) return kj::READY_NOW;
        if (++missed_ <= kMissedMax) return keepWatching(watched, std::move(lost));
        end();
        lost();
        return kj::READY_NOW;
      });
}

}  // namespace psd
