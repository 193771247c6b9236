#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace psd::testing {

/// In each of `rounds`, calls work(thread) in `threads` threads as nearly at the same moment as possible, and
/// then, with all of them done, check() in one of them.
template <class Work, class Check>
void runTogether(uint32_t threads, uint64_t rounds, const Work& work, const Check& check) {
  constexpr int kSpins = 20'000;  // a thread that yields would start late
  std::atomic<uint64_t> arrived{0};
  const auto meet = [&](uint64_t times) {
    arrived++;
    for (int spins = 0; arrived < times * threads; spins++) {
      if (spins > kSpins) std::this_thread::yield();
    }
  };
  std::vector<std::thread> running;
  for (uint32_t thread = 0; thread < threads; thread++) {
    running.emplace_back([&, thread] {
      for (uint64_t round = 0; round < rounds; round++) {
        meet(2 * round + 1);
        work(thread);
        meet(2 * round + 2);
        if (thread == 0) check();
      }
    });
  }
  for (std::thread& thread : running) thread.join();
}

}  // namespace psd::testing
