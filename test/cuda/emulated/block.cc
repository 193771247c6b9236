#include "test/cuda/emulated/block.h"

#include <cuda_runtime.h>
#include <pthread.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "test/cuda/emulated/fail.h"

#if defined(PSD_SANITIZE_ADDRESS)
#include <sanitizer/asan_interface.h>
#endif
#if defined(PSD_SANITIZE_THREAD)
#include <sanitizer/tsan_interface.h>
#endif

constinit thread_local uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace psd::emulated {
namespace {

constexpr size_t kStackBytes = size_t{256} << 10;

constinit thread_local Blocks* running = nullptr;  // running on this thread

}  // namespace

struct Blocks::Fiber {
  ucontext_t context = {};
  void* stack = nullptr;
  size_t stackBytes = 0;
  bool owned = false;
#if defined(PSD_SANITIZE_THREAD)
  void* thread = nullptr;
#endif

  /// The stack that the system gave this thread.
  static std::unique_ptr<Fiber> ofCaller() {
    auto fiber = std::make_unique<Fiber>();
    pthread_attr_t attributes;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0) fail("no stack is known");
    pthread_attr_getstack(&attributes, &fiber->stack, &fiber->stackBytes);
    pthread_attr_destroy(&attributes);
#if defined(PSD_SANITIZE_THREAD)
    fiber->thread = __tsan_get_current_fiber();
#endif
    return fiber;
  }

  static std::unique_ptr<Fiber> make(void (*enter)()) {
    auto fiber = std::make_unique<Fiber>();
    fiber->owned = true;
    fiber->stackBytes = kStackBytes;
    fiber->stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (fiber->stack == MAP_FAILED) fail("no memory for the stack of a thread");
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack;
    fiber->context.uc_stack.ss_size = kStackBytes;
    makecontext(&fiber->context, enter, 0);
#if defined(PSD_SANITIZE_THREAD)
    fiber->thread = __tsan_create_fiber(0);
#endif
    return fiber;
  }

  ~Fiber() {
    if (!owned) return;
#if defined(PSD_SANITIZE_ADDRESS)
    __asan_unpoison_memory_region(stack, kStackBytes);  // its frames are abandoned, not returned from
#endif
#if defined(PSD_SANITIZE_THREAD)
    __tsan_destroy_fiber(thread);
#endif
    munmap(stack, kStackBytes);
  }
};

Blocks::Blocks() = default;
Blocks::~Blocks() = default;

void Blocks::run(uint32_t blocks, uint32_t threads, const std::function<void()>& kernel) {
  running = this;
  kernel_ = &kernel;
  threads_ = threads;
  gridDim.x = blocks;
  blockDim.x = threads;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
    ended_ = 0;
    taken_ = false;
    for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) {
      kernel();
      ++ended_;
      if (taken_) break;  // the others have started
    }
    if (taken_ && threads > 1) switchTo(1);
    if (ended_ != threads) fail("threads of a block wait in __syncthreads() for others that have ended");
  }
  running = nullptr;
}

void Blocks::synchronize() {
  if (ended_ > 0) fail("__syncthreads() in a block of which a thread has ended");
  taken_ = true;
  if (threads_ == 1) return;
  makeFibers();
  switchTo((current_ + 1) % threads_);
}

void Blocks::makeFibers() {
  if (fibers_.empty()) fibers_.push_back(Fiber::ofCaller());
  while (fibers_.size() < threads_) fibers_.push_back(Fiber::make(&Blocks::enter));
}

/// Shared by the fibers of all threads except the first, one kernel after the other.
void Blocks::enter() {
#if defined(PSD_SANITIZE_ADDRESS)
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
  Blocks& self = *running;
  for (;;) {
    (*self.kernel_)();
    ++self.ended_;
    self.switchTo((self.current_ + 1) % self.threads_);
  }
}

void Blocks::switchTo(uint32_t thread) {
  Fiber& from = *fibers_[current_];
  Fiber& to = *fibers_[thread];
  current_ = thread;
  threadIdx.x = thread;
#if defined(PSD_SANITIZE_ADDRESS)
  void* frames = nullptr;
  __sanitizer_start_switch_fiber(&frames, to.stack, to.stackBytes);
#endif
#if defined(PSD_SANITIZE_THREAD)
  __tsan_switch_to_fiber(to.thread, 0);
#endif
  if (swapcontext(&from.context, &to.context) != 0) fail("no switch to another thread of the block");
#if defined(PSD_SANITIZE_ADDRESS)
  __sanitizer_finish_switch_fiber(frames, nullptr, nullptr);
#endif
}

}  // namespace psd::emulated

void __syncthreads() { psd::emulated::running->synchronize(); }
