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

/// What streams need of their device.
struct Device {
  Device(int number, size_t bytes, Memory& others)
      : index(number), memory(Memory::Use::atWork, bytes), opened(others) {}

  const int index;
  Memory memory;
  Memory& opened;                    ///< that of other processes, which every device can use
  std::atomic<bool> failed = false;  ///< for good: nothing queued is done any more
};

/// A stream: a thread that does one thing after the other. It waits for no other stream, the default one
/// included (cudaStreamNonBlocking). Thread-safe.
class Stream {
 public:
  explicit Stream(Device& device);
  ~Stream();  ///< waits for what is queued
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Device& device() const { return device_; }
  /// Work on the device's memory and on what is opened; left out when the device has failed.
  void queue(std::function<void()> work);
  /// Done by the host in its turn, also when the device has failed.
  void queueOnHost(std::function<void()> work);
  void synchronize();
  /// Whether nothing is queued, and nothing being done.
  bool idle() const;

  /// Whether this thread is a stream's, which must call nothing of CUDA.
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
  bool busy_ = false;  // with what was queued first
  bool ends_ = false;
  std::thread thread_;  // last: it uses all the others
};

struct Event {
  std::shared_future<std::chrono::steady_clock::time_point> recorded;
};

}  // namespace psd::emulated
