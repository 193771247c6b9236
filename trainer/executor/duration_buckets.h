#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace psd {

/// A histogram of durations. A value type.
class DurationBuckets {
 public:
  struct Bucket {
    std::optional<double> atMost;  ///< upper bound in seconds, inclusive; nothing: unbounded, the last bucket
    uint64_t count = 0;            ///< durations in this bucket only, not cumulative
  };

  void add(double seconds) {
    sum_ += seconds;
    counts_[static_cast<size_t>(std::lower_bound(kBounds.begin(), kBounds.end(), seconds) -
                                kBounds.begin())]++;
  }
  double sum() const { return sum_; }
  std::vector<Bucket> buckets() const {
    std::vector<Bucket> buckets;
    for (size_t i = 0; i < counts_.size(); i++) {
      buckets.push_back({i < kBounds.size() ? std::optional(kBounds[i]) : std::nullopt, counts_[i]});
    }
    return buckets;
  }

 private:
  static constexpr std::array kBounds{0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05,
                                      0.1,    0.2,   0.5,   1.0,   2.0,  5.0,  10.0};

  double sum_ = 0;
  std::array<uint64_t, kBounds.size() + 1> counts_{};
};

}  // namespace psd
