#include "trainer/executor/ending_sessions.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <thread>
#include <utility>

namespace psd {
namespace {

constexpr std::chrono::milliseconds kLookEvery{20};

}  // namespace

EndingSessions::EndingSessions() : thread_(1, TaskThreads::kAlike) {}

EndingSessions::~EndingSessions() { endAll(); }

void EndingSessions::add(std::unique_ptr<DaemonSession> session) {
  {
    const std::lock_guard hold(mutex_);
    sessions_.push_back(std::move(session));
  }
  thread_.post([this] { endAll(); });
}

size_t EndingSessions::size() const {
  const std::lock_guard hold(mutex_);
  return sessions_.size();
}

void EndingSessions::endAll() {
  while (endSome()) std::this_thread::sleep_for(kLookEvery);
}

bool EndingSessions::endSome() {
  std::vector<std::unique_ptr<DaemonSession>> ended;  // before the lock: destroyed after it is released
  const std::lock_guard hold(mutex_);
  const auto over =
      std::partition(sessions_.begin(), sessions_.end(), [](const auto& session) { return !session->end(); });
  std::move(over, sessions_.end(), std::back_inserter(ended));
  sessions_.erase(over, sessions_.end());
  return !sessions_.empty();
}

}  // namespace psd
