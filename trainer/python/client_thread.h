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

/// Whether the interpreter is ending: it ends threads that ask for the GIL then, in the midst of what they
/// do.
bool pythonEnds();
/// For threads that nobody waits for: does not return where the interpreter is ending.
void standStillIfPythonEnds();

/// A thread that does what Python asks for, in that order, while signals reach Python's own threads. It owns
/// a Client, so that Python may make calls from any of its threads, PyTorch's for backward passes included.
/// Thread-safe.
class ClientThread {
 public:
  ClientThread();
  /// As detach().
  ~ClientThread();

  /// Runs `work`, which throws nothing, on the thread some time later.
  void post(std::function<void()> work);
  /// Ends the thread once it has done what it was asked for. Waits for that, but not for long where a signal
  /// ended the newest run(), nor where `goesOn`, which is asked again and again, says no; the thread then
  /// goes on for itself. With the GIL, which is free meanwhile.
  void end(const std::function<bool()>& goesOn);
  /// Ends the thread so, and waits for nothing.
  void detach();

  /// Runs `work` on the thread and waits for what it returns; with the GIL, which is free meanwhile. A signal
  /// whose handler raises ends the wait with its exception; the work goes on, and keeps alive what it has
  /// captured.
  template <class Work>
  auto run(Work work) {
    using Value = std::invoke_result_t<Work&>;
    const auto task = std::make_shared<std::packaged_task<Value()>>(std::move(work));
    std::future<Value> value = task->get_future();
    post([task] { (*task)(); });
    cutShort_ = false;
    while (!readyWithin(value, kSignalInterval)) {
      if (PyErr_CheckSignals() == 0) continue;
      cutShort_ = true;
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
  bool cutShort_ = false;  // a signal ended the newest run(); with the GIL
};

}  // namespace psd::python
