#include "trainer/executor/task_threads.h"

#include <algorithm>
#include <csignal>

#include <pthread.h>

namespace psd {

TaskThreads::TaskThreads(uint32_t threads, std::chrono::milliseconds age,
                         const std::function<void()>& onStart)
    : queue_(age) {
  // The event loop handles signals: the new threads inherit a mask that blocks all of them.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const auto restore = kj::defer([&before] { pthread_sigmask(SIG_SETMASK, &before, nullptr); });
  try {
    for (uint32_t i = 0; i < threads; i++) {
      threads_.emplace_back([this, onStart] {
        if (onStart) onStart();
        serve();
      });
    }
  } catch (...) {
    endThreads();
    throw;
  }
}

TaskThreads::~TaskThreads() { endThreads(); }

void TaskThreads::endThreads() {
  (void)stopWithin(std::chrono::milliseconds(0));
  for (std::thread& thread : threads_) thread.join();
}

void TaskThreads::add(TaskLabel label, std::function<void()> work) {
  {
    const std::lock_guard hold(mutex_);
    queue_.add({label.priority, label.kind, Clock::now(), 0, {label, std::move(work)}});
  }
  changed_.notify_all();
}

bool TaskThreads::stopWithin(std::chrono::milliseconds time) {
  std::vector<CallQueue<Task>::Call> dropped;  // before the lock: destroyed after it is released
  std::unique_lock hold(mutex_);
  stopped_ = true;
  dropped = queue_.drain();
  changed_.notify_all();
  const bool idle = changed_.wait_for(hold, time, [this] { return running_ == 0; });
  hold.unlock();
  return idle;
}

void TaskThreads::serve() {
  std::unique_lock hold(mutex_);
  for (;;) {
    changed_.wait(hold, [this] { return stopped_ || !queue_.empty(); });
    if (stopped_) return;
    const Clock::time_point now = Clock::now();
    CallKind kind = CallKind::forward;
    {
      auto call = queue_.take(now);
      kind = call.kind;
      const double waited = std::chrono::duration<double>(now - call.since).count();
      waitedSeconds_ += waited;
      waitedSecondsMost_ = std::max(waitedSecondsMost_, waited);
      kinds_[static_cast<size_t>(kind)].waited.add(waited);
      running_++;
      hold.unlock();
      call.payload.work();
      call.payload.work = nullptr;  // destroy its captures without the lock
      hold.lock();
    }
    running_--;
    done_++;
    kinds_[static_cast<size_t>(kind)].computed.add(std::chrono::duration<double>(Clock::now() - now).count());
    changed_.notify_all();
  }
}

TaskThreads::Figures TaskThreads::figures() const {
  const std::lock_guard hold(mutex_);
  Figures figures{{}, running_, done_, waitedSeconds_, waitedSecondsMost_, kinds_};
  const Clock::time_point now = Clock::now();
  for (const auto* call : queue_.inOrder(now)) {
    figures.waiting.push_back(
        {call->payload.label, std::chrono::duration<double>(now - call->since).count()});
  }
  return figures;
}

}  // namespace psd
