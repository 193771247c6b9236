#include "trainer/python/client_thread.h"

#include <condition_variable>
#include <deque>
#include <mutex>

namespace psd::python {
namespace {

/// Longer than a client that is interrupted takes to say goodbye to a daemon that does not answer.
constexpr std::chrono::seconds kEndTime{5};

}  // namespace

/// What was asked of the thread, which keeps it too. Thread-safe.
struct ClientThread::Queue {
  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::deque<std::function<void()>> asked;
  bool ends = false;   // the thread is to end
  bool ended = false;  // it does nothing more

  void work() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return ends || !asked.empty(); });
      if (asked.empty()) break;
      std::function<void()> next = std::move(asked.front());
      asked.pop_front();
      lock.unlock();
      next();
      next = nullptr;  // what it captured goes before the lock is held
      lock.lock();
    }
    ended = true;
    changed.notify_all();
  }
};

ClientThread::ClientThread()
    : queue_(std::make_shared<Queue>()), thread_([queue = queue_] { queue->work(); }) {}

ClientThread::~ClientThread() {
  bool ended = false;
  {
    std::unique_lock lock(queue_->mutex);
    queue_->ends = true;
    queue_->changed.notify_all();
    // Python's garbage may be collected on the thread itself, in a callback.
    const bool waits = thread_.joinable() && thread_.get_id() != std::this_thread::get_id();
    if (waits) ended = queue_->changed.wait_for(lock, kEndTime, [this] { return queue_->ended; });
  }
  if (ended) {
    thread_.join();
  } else {
    detach();
  }
}

void ClientThread::post(std::function<void()> work) {
  {
    const std::lock_guard lock(queue_->mutex);
    queue_->asked.push_back(std::move(work));
  }
  queue_->changed.notify_all();
}

void ClientThread::detach() {
  if (thread_.joinable()) thread_.detach();
}

}  // namespace psd::python
