#include "server/publish/round_queue.h"

#include <utility>

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

namespace psd {

void RoundQueue::open(uint64_t every, std::function<void()> wake) {
  const std::lock_guard hold(mutex_);
  every_ = every;
  wake_ = std::move(wake);
  names_.clear();
}

void RoundQueue::follow(uint64_t every) {
  const std::lock_guard hold(mutex_);
  every_ = every;
}

void RoundQueue::close() {
  std::deque<Held> released;  // outside of the mutex
  const std::lock_guard hold(mutex_);
  wake_ = nullptr;
  std::swap(released, held_);
}

void RoundQueue::applied(uint32_t group, RoundMoment moment, ShardLock::Guard applying) {
  const std::lock_guard hold(mutex_);
  Names& names = names_[group];
  names.unnamed = 0;
  if (!wake_ || every_ == 0 || moment.number % every_ != 0) return;
  if (moment.number <= names.newest) {
    if (std::exchange(names.repeated, moment.number) == 0) {
      spdlog::warn("round {} is in no version: its number is not above that of round {} before it",
                   moment.number, names.newest);
    }
    return;
  }
  names.newest = moment.number;
  names.repeated = 0;
  held_.push_back({group, moment, std::move(applying), std::chrono::steady_clock::now()});
  wake_();
}

void RoundQueue::unnamed(uint32_t group) {
  const std::lock_guard hold(mutex_);
  names_[group].unnamed++;
}

std::string RoundQueue::fault() const {
  const std::lock_guard hold(mutex_);
  for (const auto& [group, names] : names_) {
    if (every_ > 0 && names.unnamed >= every_) {
      return fmt::format(
          "the last {} rounds are in no version: their trainers do not name them; update trainers of an "
          "earlier psd",
          names.unnamed);
    }
    if (names.repeated > 0) {
      return fmt::format(
          "round {} is in no version: the first daemon has made rounds of these numbers before; versions "
          "continue after round {}",
          names.repeated, names.newest);
    }
  }
  return {};
}

void RoundQueue::expire(std::chrono::steady_clock::time_point now) {
  std::deque<Held> released;
  const std::lock_guard hold(mutex_);
  while (!held_.empty() && now - held_.front().since > kHoldMax) {
    spdlog::warn("round {} is in no version: the version before it is still being written",
                 held_.front().moment.number);
    released.push_back(std::move(held_.front()));
    held_.pop_front();
  }
}

std::optional<RoundQueue::Held> RoundQueue::take() {
  const std::lock_guard hold(mutex_);
  if (held_.empty()) return {};
  std::optional<Held> next(std::move(held_.front()));
  held_.pop_front();
  return next;
}

bool RoundQueue::empty() const {
  const std::lock_guard hold(mutex_);
  return held_.empty();
}

}  // namespace psd
