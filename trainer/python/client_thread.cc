#include "trainer/python/client_thread.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>

#include <dlfcn.h>

namespace psd::python {
namespace {

/// Longer than an interrupted client takes for its goodbye to a daemon that does not answer.
constexpr std::chrono::milliseconds kEndTime{5000};
/// After a signal: enough for a goodbye to a responsive daemon, and too short to be noticeable.
constexpr std::chrono::milliseconds kEndTimeAfterSignal{100};

}  // namespace

bool pythonIsFinalizing() {
  // Looked up at run time, since a stable-ABI module supports versions of Python with either name.
  static const auto isFinalizing = [] {
    void* found = dlsym(RTLD_DEFAULT, "Py_IsFinalizing");
    if (found == nullptr) found = dlsym(RTLD_DEFAULT, "_Py_IsFinalizing");  // before Python 3.13
    return reinterpret_cast<int (*)()>(found);
  }();
  return isFinalizing != nullptr && isFinalizing() != 0;
}

void blockIfPythonIsFinalizing() {
  while (pythonIsFinalizing()) std::this_thread::sleep_for(std::chrono::hours(1));
}

/// The work queue, which the thread co-owns. Thread-safe.
struct ClientThread::Queue {
  std::mutex mutex;  // guards the members below
  std::condition_variable changed;
  std::deque<std::function<void()>> tasks;
  bool ends = false;   // the thread shall end
  bool ended = false;  // the thread runs no more work

  void work() {
    std::unique_lock lock(mutex);
    for (;;) {
      // Not wait(), for which gcc 12 emits a symbol that libstdc++ 11 lacks.
      changed.wait_until(lock, std::chrono::steady_clock::time_point::max(),
                         [this] { return ends || !tasks.empty(); });
      if (tasks.empty()) break;
      std::function<void()> next = std::move(tasks.front());
      tasks.pop_front();
      lock.unlock();
      blockIfPythonIsFinalizing();
      next();
      blockIfPythonIsFinalizing();
      next = nullptr;  // destroy its captures without the lock
      lock.lock();
    }
    ended = true;
    changed.notify_all();
  }
};

ClientThread::ClientThread()
    : queue_(std::make_shared<Queue>()), thread_([queue = queue_] { queue->work(); }) {}

ClientThread::~ClientThread() { detach(); }

void ClientThread::end(const std::function<bool()>& keepWaiting) {
  // Python's garbage collector may run on the thread itself, in a callback.
  const bool waits = thread_.joinable() && thread_.get_id() != std::this_thread::get_id();
  const auto until = std::chrono::steady_clock::now() + (endedBySignal_ ? kEndTimeAfterSignal : kEndTime);
  bool ended = false;
  for (bool first = true; waits && !ended && (first || keepWaiting()); first = false) {
    const nanobind::gil_scoped_release free;
    std::unique_lock lock(queue_->mutex);
    queue_->ends = true;
    queue_->changed.notify_all();
    const auto piece = std::min(until, std::chrono::steady_clock::now() + kSignalInterval);
    ended = queue_->changed.wait_until(lock, piece, [this] { return queue_->ended; });
    if (piece == until) break;
  }
  if (ended) {
    const nanobind::gil_scoped_release free;
    thread_.join();
  }
  detach();
}

void ClientThread::post(std::function<void()> work) {
  {
    const std::lock_guard lock(queue_->mutex);
    queue_->tasks.push_back(std::move(work));
  }
  queue_->changed.notify_all();
}

void ClientThread::detach() {
  {
    const std::lock_guard lock(queue_->mutex);
    queue_->ends = true;
  }
  queue_->changed.notify_all();
  if (thread_.joinable()) thread_.detach();
}

}  // namespace psd::python
