#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace psd {

/// Snapshot of a Histogram. A value type; it may come from a peer and is then untrusted.
struct HistogramValue {
  /// Counts the values above the previous bucket's bound, up to and including `atMost`.
  struct Bucket {
    std::optional<double> atMost;  ///< nullopt: the last bucket, without an upper bound
    uint64_t count = 0;
    static void fields(auto& visit, auto& self) {
      visit("at_most", self.atMost);
      visit("count", self.count);
    }
  };

  uint64_t count = 0;
  double sum = 0;
  double most = 0;  ///< the largest value
  std::vector<Bucket> buckets;

  static void fields(auto& visit, auto& self) {
    visit("count", self.count);
    visit("sum", self.sum);
    visit("most", self.most);
    visit("buckets", self.buckets);
  }

  /// The quantile at `share` (0 to 1), interpolated linearly within its bucket. 0 if there are no values.
  double quantile(double share) const;
  /// An upper bound of the quantile at `share`: the bound of a bucket, or the largest value.
  double bound(double share) const;

 private:
  /// Position of the value of rank share · count: the bounds of its bucket, and the fraction between them.
  struct Place {
    double above = 0, atMost = 0, part = 0;
  };
  Place placeOf(double share) const;
};

/// Counts non-negative values in buckets with fixed bounds. Thread-safe and lock-free; relaxed, like Counter,
/// so a snapshot taken during concurrent recording may lack some values.
class Histogram {
 public:
  using Value = HistogramValue;
  static constexpr size_t kBoundsMax = 31;

  /// `bounds`: upper bounds of the buckets, ascending, at most kBoundsMax; they outlive the histogram. One
  /// more bucket takes larger values.
  explicit Histogram(std::span<const double> bounds)
      : bounds_(bounds.first(std::min(bounds.size(), kBoundsMax))) {}

  void record(double value);
  HistogramValue value() const;

 private:
  const std::span<const double> bounds_;
  std::array<std::atomic<uint64_t>, kBoundsMax + 1> counts_{};
  std::atomic<double> sum_{0}, most_{0};
};

/// Bounds for counts: 0 and the powers of two up to 65,536.
inline constexpr std::array<double, 18> kCountBounds = {
    0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536};
/// Bounds for seconds: 1, 2, 5 times the powers of ten, from 10 µs to 1000 s.
inline constexpr std::array<double, 25> kSecondsBounds = {
    1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1,
    0.2,  0.5,  1,    2,    5,    10,   20,   50,   100,  200,  500,  1000};

}  // namespace psd
