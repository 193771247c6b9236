#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include <kj/async.h>

#include "common/status/status.h"
#include "trainer/executor/call_queue.h"
#include "trainer/executor/duration_buckets.h"

namespace psd {

/// The call that a task computes.
struct TaskLabel {
  int8_t priority = 0;
  CallKind kind = CallKind::forward;
  uint32_t rank = 0;     ///< of the trainer; for status only
  uint64_t context = 0;  ///< for status only
};

/// A thread pool for work that would block an event loop, in the order of a CallQueue. run() is called by the
/// event loop's thread, which outlives running tasks; post(), stopWithin() and the destructor by any thread
/// except the pool's own.
class TaskThreads {
 public:
  using Clock = std::chrono::steady_clock;

  /// An `age` for pools whose tasks all have the same label: they run in order of arrival.
  static constexpr std::chrono::milliseconds kUniformAge{1'000};

  struct Waiting {
    TaskLabel label;
    double seconds = 0;
  };
  /// Statistics of one kind of task.
  struct KindFigures {
    DurationBuckets waited, computed;
  };
  struct Figures {
    const KindFigures& of(CallKind kind) const { return kinds[static_cast<size_t>(kind)]; }

    std::vector<Waiting> waiting;  ///< in the order in which they will run
    uint32_t running = 0;
    uint64_t done = 0;
    double waitedSeconds = 0;          ///< sum over all started tasks
    double waitedSecondsMost = 0;      ///< maximum of one task
    std::array<KindFigures, 2> kinds;  ///< by CallKind
  };

  /// `onStart` is called on each thread; may be null. Throws std::system_error if a thread cannot be created.
  TaskThreads(uint32_t threads, std::chrono::milliseconds age, const std::function<void()>& onStart = {});
  /// Drops waiting tasks and waits for running ones.
  ~TaskThreads();

  /// Runs `work()` on a thread and resolves to its Result<T>; an exception becomes an Error. If the promise
  /// is dropped before the task starts, the task is skipped.
  template <class T>
  kj::Promise<Result<T>> run(TaskLabel label, std::function<Result<T>()> work) {
    auto result = kj::newPromiseAndCrossThreadFulfiller<Result<T>>();
    using Fulfiller = kj::Own<kj::CrossThreadPromiseFulfiller<Result<T>>>;
    auto fulfiller = std::make_shared<Fulfiller>(kj::mv(result.fulfiller));
    add(label, [fulfiller, work = std::move(work)] {
      if ((*fulfiller)->isWaiting()) (*fulfiller)->fulfill(outcomeOf<T>(work));
    });
    return kj::mv(result.promise);
  }
  /// Runs `work` on a thread, without a result.
  void post(std::function<void()> work) { add({}, std::move(work)); }

  /// Drops waiting tasks; returns whether the running ones finish within `time`. No task may be added
  /// afterwards.
  bool stopWithin(std::chrono::milliseconds time);

  Figures figures() const;

 private:
  struct Task {
    TaskLabel label;
    std::function<void()> work;
  };

  template <class T>
  static Result<T> outcomeOf(const std::function<Result<T>()>& work) {
    try {
      return work();
    } catch (const std::bad_alloc&) {
      return Error{ErrorCode::overloaded, "no memory is left"};
    } catch (const std::exception& exception) {
      return Error{ErrorCode::internal, exception.what()};
    }
  }
  void add(TaskLabel label, std::function<void()> work);
  void serve();
  void endThreads();

  mutable std::mutex mutex_;  // guards the members below, except threads_
  std::condition_variable changed_;
  CallQueue<Task> queue_;
  bool stopped_ = false;
  uint32_t running_ = 0;
  uint64_t done_ = 0;
  double waitedSeconds_ = 0, waitedSecondsMost_ = 0;
  std::array<KindFigures, 2> kinds_;
  std::vector<std::thread> threads_;  // not guarded: used only by the owner
};

}  // namespace psd
