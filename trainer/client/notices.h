#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "trainer/client/api/client.h"
#include "trainer/client/client_lock.h"
#include "trainer/client/link.h"

namespace psd {

/// Reports events to the client's user, outside the client's lock. Used with that lock held, except
/// queueLine() and reportWait().
class Notices {
 public:
  using Callback = std::function<void(const ClientEvent&)>;

  /// `callback` may be null: nothing is reported.
  Notices(Callback callback, ClientLock& lock) : callback_(std::move(callback)), lock_(lock) {}

  void tell(ClientEvent::What what, std::string line) const {
    if (callback_) lock_.callBack([&] { callback_({what, std::move(line)}); });
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
  /// Reports, at most once a minute, that the client waits long for `what`. Called without the client's lock,
  /// by any thread.
  void reportWait(const std::string& what) {
    {
      const std::lock_guard hold(mutex_);
      const auto now = std::chrono::steady_clock::now();
      if (now < nextWait_) return;
      nextWait_ = now + std::chrono::minutes(1);
    }
    if (!callback_) return;
    lock_.callBackOutside([&] { callback_({ClientEvent::What::waits, "waiting for " + what}); });
  }
  /// Waits for an answer that other trainers may delay.
  template <class T>
  Result<T> awaitAnswer(const Link::Future<T>& answer, const std::string& what) {
    if (!lock_.awaitFuture(answer, [&] { reportWait(what); })) return waitEndedError();
    return answer.get();
  }

 private:
  const Callback callback_;
  ClientLock& lock_;
  std::mutex mutex_;  // guards the rest
  std::chrono::steady_clock::time_point nextWait_{};
  std::vector<std::string> due_;  // at most one for each other daemon
  std::atomic<bool> isDue_ = false;
};

}  // namespace psd
