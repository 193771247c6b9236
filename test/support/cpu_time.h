#pragma once

#include <cstddef>
#include <ctime>

namespace psd::testing {

/// Runs `work`, and tells how long this process computed meanwhile, in seconds; what other processes do is
/// not in it.
template <class Work>
double cpuSeconds(const Work& work) {
  const std::clock_t begun = std::clock();
  work();
  return static_cast<double>(std::clock() - begun) / CLOCKS_PER_SEC;
}

/// Whether eight times as many take about eight times as long, where a time that grows with the square is 64
/// times as long. `work(count)` is run for `most` / 8 and for `most`.
template <class Work>
bool growsLinearly(size_t most, const Work& work) {
  const double few = cpuSeconds([&] { work(most / 8); });
  const double all = cpuSeconds([&] { work(most); });
  return all < 30 * few;
}

}  // namespace psd::testing
