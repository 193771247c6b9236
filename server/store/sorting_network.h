#pragma once

// Plain C++ and no third-party header: .cu files include this.

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "server/optimizer/option.h"

namespace psd {

/// Swaps two values if necessary, so that the smaller is at `low` and the larger at `high` (low < high).
struct Comparator {
  uint32_t low = 0;
  uint32_t high = 0;
};

/// Calls `visit(Comparator)` in order for Batcher's odd-even merge sort (1968) of `count` values: the network
/// of the next power of two without the comparators of the missing values, which are treated as +∞ at the
/// end.
template <class Visitor>
constexpr void visitSortingNetwork(uint32_t count, Visitor&& visit) {
  for (uint32_t p = 1; p < count; p *= 2) {
    for (uint32_t k = p; k >= 1; k /= 2) {
      for (uint32_t j = k % p; j + k < count; j += 2 * k) {
        for (uint32_t i = j; i < j + k && i + k < count; ++i) {
          if (i / (2 * p) == (i + k) / (2 * p)) visit(Comparator{i, i + k});
        }
      }
    }
  }
}

/// The comparators that determine positions first … last − 1 of `count` sorted values, without those that
/// only order the rest.
std::vector<Comparator> selectionNetwork(uint32_t count, uint32_t first, uint32_t last);

template <uint32_t kCount>
struct SortingNetwork {
  static constexpr size_t kSize = [] {
    size_t size = 0;
    visitSortingNetwork(kCount, [&](Comparator) { ++size; });
    return size;
  }();
  static constexpr auto kComparators = [] {
    std::array<Comparator, kSize> all{};
    size_t next = 0;
    visitSortingNetwork(kCount, [&](Comparator comparator) { all[next++] = comparator; });
    return all;
  }();
};

/// One comparator as a type, because nvcc does not allow device code to call host functions, even at compile
/// time.
template <uint32_t kCount, size_t kIndex>
struct SortingStep {
  static constexpr uint32_t kLow = SortingNetwork<kCount>::kComparators[kIndex].low;
  static constexpr uint32_t kHigh = SortingNetwork<kCount>::kComparators[kIndex].high;
};

template <class Step>
PSD_HOST_DEVICE void compareExchange(float* values) {
  const float a = values[Step::kLow], b = values[Step::kHigh];
  values[Step::kLow] = a < b ? a : b;
  values[Step::kHigh] = a < b ? b : a;
}

template <uint32_t kCount, size_t... kIndex>
PSD_HOST_DEVICE void sortByNetwork([[maybe_unused]] float* values, std::index_sequence<kIndex...>) {
  // Elements of a braced list are evaluated in order.
  [[maybe_unused]] const int ordered[] = {(compareExchange<SortingStep<kCount, kIndex>>(values), 0)..., 0};
}

/// Sorts kCount values with steps known at compile time, so that the values can stay in registers.
template <uint32_t kCount>
PSD_HOST_DEVICE void sortByNetwork(float* values) {
  sortByNetwork<kCount>(values, std::make_index_sequence<SortingNetwork<kCount>::kSize>());
}

}  // namespace psd
