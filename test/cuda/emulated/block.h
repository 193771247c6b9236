#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace psd::emulated {

/// Runs the blocks of a kernel one after the other. The threads of a block take turns: each runs up to
/// __syncthreads() or to its end, the first one on the caller's stack, the others of a kernel that calls
/// __syncthreads() as fibers. If some threads of a block end while others wait, the program ends, as a device
/// would hang. Owned by one thread, on which every kernel runs.
class Blocks {
 public:
  Blocks();
  ~Blocks();
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;

  void run(uint32_t blocks, uint32_t threads, const std::function<void()>& kernel);

  /// __syncthreads() of the running thread.
  void synchronize();

 private:
  struct Fiber;

  void switchTo(uint32_t thread);
  void makeFibers();
  static void enter();

  std::vector<std::unique_ptr<Fiber>> fibers_;  // by thread index; the first: the caller's stack
  const std::function<void()>* kernel_ = nullptr;
  uint32_t threads_ = 0;
  uint32_t current_ = 0;
  uint32_t ended_ = 0;  // in the running block
  bool taken_ = false;  // some thread of the running block has called __syncthreads()
};

}  // namespace psd::emulated
