#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>

#include <nanobind/nanobind.h>

namespace psd::python {

/// Whether the interpreter is finalizing. From then on it terminates threads that acquire the GIL, without
/// unwinding them.
bool pythonIsFinalizing();
/// For threads that nothing joins: does not return if the interpreter is finalizing.
void blockIfPythonIsFinalizing();

/// A thread that runs work for Python in order, while signals reach Python's own threads. It owns a Client,
/// so that Python can make calls from any thread, including PyTorch's threads for backward passes.
/// Thread-safe.
class ClientThread {
 public:
  ClientThread();
  /// See detach().
  ~ClientThread();

  /// Queues `work`, which must not throw, and returns.
  void post(std::function<void()> work);
  /// Ends the thread after its queued work. Waits for that while `keepWaiting`, which is polled, returns
  /// true, and only briefly if a signal ended the last run(); otherwise the thread is detached and finishes
  /// alone. With the GIL, which is released meanwhile.
  void end(const std::function<bool()>& keepWaiting);
  /// Ends the thread after its queued work, without waiting for it.
  void detach();

  /// Runs `work` on the thread and returns its result; with the GIL, which is released meanwhile. If a signal
  /// handler raises, the wait ends with its exception; the work continues and keeps its captures alive.
  template <class Work>
  auto run(Work work) {
    using Value = std::invoke_result_t<Work&>;
    const auto task = std::make_shared<std::packaged_task<Value()>>(std::move(work));
    std::future<Value> value = task->get_future();
    post([task] { (*task)(); });
    endedBySignal_ = false;
    while (!readyWithin(value, kSignalInterval)) {
      if (PyErr_CheckSignals() == 0) continue;
      endedBySignal_ = true;
      throw nanobind::python_error();
    }
    return value.get();
  }

 private:
  struct Queue;
  static constexpr std::chrono::milliseconds kSignalInterval{50};

  template <class Value>
  static bool readyWithin(const std::future<Value>& value, std::chrono::milliseconds time) {
    const nanobind::gil_scoped_release free;
    return value.wait_for(time) == std::future_status::ready;
  }

  const std::shared_ptr<Queue> queue_;
  std::thread thread_;
  bool endedBySignal_ = false;  // a signal ended the last run(); guarded by the GIL
};

}  // namespace psd::python
