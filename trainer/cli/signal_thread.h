#pragma once

#include <csignal>
#include <future>
#include <thread>

namespace psd {

/// While it exists, SIGINT and SIGTERM are delivered to a dedicated thread only, and blocked in the calling
/// thread and all threads that it starts: kernels of oneDNN point the stack pointer into the heap, where a
/// signal frame overwrites memory (an LSTM's backward pass corrupts the heap at each signal). Does not
/// install handlers. Created by the main thread before all other threads, and destroyed after them.
class SignalThread {
 public:
  SignalThread();
  ~SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

 private:
  sigset_t previous_{};
  std::promise<void> over_;
  std::thread thread_;
};

}  // namespace psd
