#include "server/move/outcome_poll.h"

#include <algorithm>
#include <utility>

#include <spdlog/spdlog.h>

namespace psd {
namespace {

constexpr kj::Duration kFirstPause = 100 * kj::MILLISECONDS, kMaxPause = 10 * kj::SECONDS;

}  // namespace

void OutcomePoll::start(uint64_t move, MoveLead lead, Handle handle) {
  if (move_ == move) return;
  move_ = move;
  lead_ = std::move(lead);
  handle_ = std::move(handle);
  asking_ = poll(move, kFirstPause).eagerlyEvaluate([this](kj::Exception&& exception) {
    move_ = 0;  // it may be started again
    spdlog::error("polling the outcome of a move failed: {}", exception.getDescription().cStr());
  });
}

kj::Promise<void> OutcomePoll::poll(uint64_t move, kj::Duration pause) {
  return timer_.afterDelay(pause)
      .then([this, move] {
        return background_.tryRun<Result<MoveOutcome>>(
            [this, lead = lead_, move] { return daemon_.askLead(lead, move); });
      })
      .then([this](const Result<MoveOutcome>& outcome) -> kj::Promise<bool> {
        if (!outcome.ok()) return false;
        return handle_(*outcome);
      })
      .then([this, move, pause](bool settled) -> kj::Promise<void> {
        if (!settled) return poll(move, std::min(2 * pause, kMaxPause));
        move_ = 0;
        return kj::READY_NOW;
      });
}

}  // namespace psd
