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

/// Which call a task is of.
struct TaskLabel {
  int8_t priority = 0;
  CallKind kind = CallKind::forward;
  uint32_t rank = 0;     ///< of the trainer, for people
  uint64_t context = 0;  ///< for people
};

/// Threads that do what an event loop must not wait for, in the order of a CallQueue. run() is for the event
/// loop's thread, which outlives what runs; post() and the end are for any thread but these.
class TaskThreads {
 public:
  using Clock = std::chrono::steady_clock;

  /// For threads whose tasks all have the same label: these are done in the order of arrival.
  static constexpr std::chrono::milliseconds kAlike{1'000};

  struct Waiting {
    TaskLabel label;
    double seconds = 0;
  };
  /// Of tasks of one kind.
  struct OfKind {
    DurationBuckets waited, computed;
  };
  struct Figures {
    const OfKind& of(CallKind kind) const { return kinds[static_cast<size_t>(kind)]; }

    std::vector<Waiting> waiting;  ///< in the order in which they will be taken
    uint32_t running = 0;
    uint64_t done = 0;
    double waitedSeconds = 0;      ///< of all that were taken
    double waitedSecondsMost = 0;  ///< of one
    std::array<OfKind, 2> kinds;   ///< by CallKind
  };

  /// `onStart` is called on each thread; null: nothing is. Throws std::system_error where the system gives no
  /// thread.
  TaskThreads(uint32_t threads, std::chrono::milliseconds age, const std::function<void()>& onStart = {});
  /// Drops what waits; returns when what runs is done.
  ~TaskThreads();

  /// Has `work()`, a Result<T>, done on a thread. What it throws becomes an Error. Work that waits when
  /// nobody waits for its result any more is dropped.
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
  /// Has `work` done; nobody waits for it.
  void post(std::function<void()> work) { add({}, std::move(work)); }

  /// Drops what waits, and whether what runs is done within `time`. Nothing may be added after it.
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

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  CallQueue<Task> queue_;
  bool stopped_ = false;
  uint32_t running_ = 0;
  uint64_t done_ = 0;
  double waitedSeconds_ = 0, waitedSecondsMost_ = 0;
  std::array<OfKind, 2> kinds_;
  std::vector<std::thread> threads_;  // not guarded: the owner's
};

}  // namespace psd
