#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <span>
#include <vector>

#include <sys/mman.h>

namespace psd::bench {

/// Times of repeated runs, in seconds. A value type.
struct Timing {
  double median = 0;
  double best = 0;
  uint64_t iterations = 0;
};

/// Runs `work` once to warm up, then for `seconds`, at least once.
template <class Work>
Timing measure(double seconds, Work&& work) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  work();
  std::vector<double> times;
  const Clock::time_point begin = Clock::now();
  do {
    const Clock::time_point start = Clock::now();
    work();
    times.push_back(since(start));
  } while (since(begin) < seconds);
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.front(), times.size()};
}

/// Floats in huge pages if the system provides them, with every page touched, so that no page fault occurs
/// while time is measured. Owned by one thread.
class Floats {
 public:
  explicit Floats(uint64_t bytes) : count_((bytes + sizeof(float) - 1) / sizeof(float)) {
    const uint64_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    data_ = static_cast<float*>(std::aligned_alloc(kHugePage, rounded));
    if (data_ == nullptr) throw std::bad_alloc();
    madvise(data_, rounded, MADV_HUGEPAGE);  // a hint: slower without it
    std::fill_n(data_, rounded / sizeof(float), 0.f);
  }
  ~Floats() { std::free(data_); }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;

  float* data() const { return data_; }
  uint64_t count() const { return count_; }
  std::span<char> bytes() const { return {reinterpret_cast<char*>(data_), count_ * sizeof(float)}; }

 private:
  static constexpr uint64_t kHugePage = 2u << 20;
  uint64_t count_;
  float* data_;
};

}  // namespace psd::bench
