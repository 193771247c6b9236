#pragma once

#include <cstddef>
#include <ctime>

namespace psd::testing {

/// Runs `work` and returns the CPU time of this process meanwhile, in seconds. Other processes are not
/// counted.
template <class Work>
double cpuSeconds(const Work& work) {
  const std::clock_t begun = std::clock();
  work();
  return static_cast<double>(std::clock() - begun) / CLOCKS_PER_SEC;
}

/// Whether the time grows about linearly: eight times the count takes about eight times as long, where
/// quadratic growth takes 64 times as long. `work(count)` runs for `most` / 8 and for `most`.
template <class Work>
bool growsLinearly(size_t most, const Work& work) {
  const double few = cpuSeconds([&] { work(most / 8); });
  const double all = cpuSeconds([&] { work(most); });
  return all < 30 * few;
}

}  // namespace psd::testing
