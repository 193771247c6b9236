#pragma once

#include <csignal>
#include <future>
#include <thread>

namespace psd {

/// While it lives, SIGINT and SIGTERM are taken by a thread of its own, and by no other that the calling
/// thread starts from then on: kernels of oneDNN let the stack pointer point into the heap, where the frame
/// of a handler overwrites what lies below (an LSTM's backward pass corrupts the heap at each signal). What
/// the signals do is left to others. Made and dropped by the main thread, before every other thread and
/// after.
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
