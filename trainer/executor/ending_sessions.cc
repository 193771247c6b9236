#include "trainer/executor/ending_sessions.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <thread>
#include <utility>

namespace psd {
namespace {

constexpr std::chrono::milliseconds kPollInterval{20};

}  // namespace

EndingSessions::EndingSessions() : thread_(1, TaskThreads::kUniformAge) {}

EndingSessions::~EndingSessions() { pollUntilEmpty(); }

void EndingSessions::add(std::unique_ptr<DaemonSession> session) {
  {
    const std::lock_guard hold(mutex_);
    sessions_.push_back(std::move(session));
  }
  thread_.post([this] { pollUntilEmpty(); });
}

size_t EndingSessions::size() const {
  const std::lock_guard hold(mutex_);
  return sessions_.size();
}

void EndingSessions::pollUntilEmpty() {
  while (pollOnce()) std::this_thread::sleep_for(kPollInterval);
}

bool EndingSessions::pollOnce() {
  std::vector<std::unique_ptr<DaemonSession>> ended;  // before the lock: destroyed after it is released
  const std::lock_guard hold(mutex_);
  const auto over =
      std::partition(sessions_.begin(), sessions_.end(), [](const auto& session) { return !session->end(); });
  std::move(over, sessions_.end(), std::back_inserter(ended));
  sessions_.erase(over, sessions_.end());
  return !sessions_.empty();
}

}  // namespace psd
