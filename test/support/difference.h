#pragma once

#include <algorithm>
#include <cmath>
#include <span>

#include "test/support/catch.h"

namespace psd::testing {

/// The largest absolute difference between elements of two arrays.
inline double largestDifference(std::span<const float> a, std::span<const float> b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); i++) largest = std::max(largest, std::abs(double{a[i]} - b[i]));
  return largest;
}

}  // namespace psd::testing
