#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "trainer/client/client.h"
#include "trainer/client/link.h"

namespace psd {

/// How long a call that other trainers may delay waits before it is reported.
inline constexpr std::chrono::milliseconds kLongWait{3'000};

/// Reports events to the client's user. Owned by the client's thread, except queueLine().
class Notices {
 public:
  using Callback = std::function<void(const ClientEvent&)>;

  /// `callback` may be null: nothing is reported.
  explicit Notices(Callback callback) : callback_(std::move(callback)) {}

  void tell(ClientEvent::What what, std::string line) const {
    if (callback_) callback_({what, std::move(line)});
  }
  /// Queues a line, to be reported at the next reportQueued(). Callable from any thread.
  void queueLine(std::string line) {
    const std::lock_guard hold(mutex_);
    due_.push_back(std::move(line));
    isDue_ = true;
  }
  void reportQueued() {
    if (!isDue_) return;
    std::vector<std::string> due;
    {
      const std::lock_guard hold(mutex_);
      due.swap(due_);
      isDue_ = false;
    }
    for (std::string& line : due) tell(ClientEvent::What::waits, std::move(line));
  }
  /// Reports, at most once a minute, that the client waits long for `what`.
  void reportWait(const std::string& what) {
    const auto now = std::chrono::steady_clock::now();
    if (now < nextWait_) return;
    nextWait_ = now + std::chrono::minutes(1);
    tell(ClientEvent::What::waits, "waiting for " + what);
  }
  /// Waits for an answer that other trainers may delay.
  template <class T>
  Result<T> awaitAnswer(const Link::Future<T>& answer, const std::string& what) {
    if (answer.wait_for(kLongWait) != std::future_status::ready) reportWait(what);
    return answer.get();
  }

 private:
  const Callback callback_;
  std::chrono::steady_clock::time_point nextWait_{};
  std::mutex mutex_;              // guards the rest
  std::vector<std::string> due_;  // at most one for each other daemon
  std::atomic<bool> isDue_ = false;
};

}  // namespace psd
