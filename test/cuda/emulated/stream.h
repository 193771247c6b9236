#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

#include "test/cuda/emulated/memory.h"

namespace psd::emulated {

/// State of a device that its streams share.
struct Device {
  Device(int number, size_t bytes, Memory& others)
      : index(number), memory(Memory::Use::atWork, bytes), opened(others) {}

  const int index;
  Memory memory;
  Memory& opened;                    ///< of other processes, accessible to every device
  std::atomic<bool> failed = false;  ///< permanent: no queued work is done any more
};

/// A stream: a thread that does one operation after the other. It waits for no other stream, not even the
/// default one (cudaStreamNonBlocking). Thread-safe.
class Stream {
 public:
  explicit Stream(Device& device);
  ~Stream();  ///< waits for queued work
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Device& device() const { return device_; }
  /// Work on the device's memory and on opened memory; skipped if the device has failed.
  void queue(std::function<void()> work);
  /// Run by the host in its turn, even if the device has failed.
  void queueOnHost(std::function<void()> work);
  void synchronize();
  /// Whether no work is queued or running.
  bool idle() const;

  /// Whether this is a stream's thread, which must not call CUDA.
  static bool onDriverThread();

 private:
  struct Work {
    std::function<void()> run;
    bool onDevice;
  };

  void queue(Work work);
  void run();

  Device& device_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queued_;
  bool busy_ = false;  // running the first queued operation
  bool ends_ = false;
  std::thread thread_;  // last: it uses all the others
};

struct Event {
  std::shared_future<std::chrono::steady_clock::time_point> recorded;
};

}  // namespace psd::emulated
