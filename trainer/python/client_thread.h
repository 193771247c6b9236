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

/// A thread that does what Python asks for, in that order, while signals reach Python's own threads. It owns
/// a Client, so that Python may make calls from any of its threads, PyTorch's for backward passes included.
/// Thread-safe.
class ClientThread {
 public:
  ClientThread();
  /// Ends the thread once it has done what it was asked for. Should that take longer than some seconds,
  /// nobody waits for it. Without the GIL, which what is done may need.
  ~ClientThread();

  /// Runs `work`, which throws nothing, on the thread some time later.
  void post(std::function<void()> work);
  /// Lets what is being done go on for itself: the destructor does not wait for it.
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
    while (!readyWithin(value, kSignalInterval)) {
      if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
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
};

}  // namespace psd::python
