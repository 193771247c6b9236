#pragma once

// Plain C++ and no third-party header: .cu files include this.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "server/store/gradient_change.h"

namespace psd {

/// A gradient of a whole shard in the memory of the shard's device (on CUDA not readable by the host), valid
/// until `owner` is released. Immutable.
struct StagedGradient {
  std::span<const float> values;
  std::shared_ptr<const void> owner;
};

/// A range of shard elements with its own weights in a weighted sum. A value type.
struct WeightedRange {
  uint64_t begin = 0, count = 0;
  std::vector<float> weights;  ///< one per gradient; gradients of weight 0 are not read
};

/// How to combine several gradients into one, element by element. A value type.
struct Combination {
  enum class Kind {
    weightedSum,  ///< Σ weight · gradient, summed in the order of the gradients
    trimmedMean,  ///< mean without the `trim` smallest and largest values, summed in ascending order
  };
  Kind kind = Kind::weightedSum;
  std::vector<float> weights;  ///< one per gradient; gradients of weight 0 are not read
  uint32_t trim = 0;           ///< 2 · trim < number of gradients
  GradientChange change{};     ///< applied to the combined gradient; without compensation
  /// Only for a weighted sum, replaces `weights`: consecutive ranges that cover the shard without gaps, each
  /// starting at a multiple of the layout's grain. Empty: `weights` applies to all elements.
  std::vector<WeightedRange> ranges = {};

  /// Only for a weighted sum: calls visit(weights, from, some) in order for each part of elements [offset,
  /// offset + count) that has the same weights.
  template <class Visit>
  void forEachWeights(uint64_t offset, uint64_t count, const Visit& visit) const {
    if (ranges.empty()) return visit(weights, offset, count);
    const uint64_t end = offset + count;
    auto range = std::upper_bound(ranges.begin(), ranges.end(), offset,
                                  [](uint64_t at, const WeightedRange& each) { return at < each.begin; });
    if (range != ranges.begin()) --range;
    for (; range != ranges.end() && range->begin < end; ++range) {
      const uint64_t from = std::max(offset, range->begin);
      const uint64_t to = std::min(end, range->begin + range->count);
      if (from < to) visit(range->weights, from, to - from);
    }
  }
};

/// ‖a − b‖² for each pair of a set of vectors. Infinite where squares overflow a float. A value type.
class SquaredDistances {
 public:
  SquaredDistances() = default;
  explicit SquaredDistances(size_t vectors) : vectors_(vectors), pairs_(pairCount(vectors)) {}

  static size_t pairCount(size_t vectors) { return vectors < 2 ? 0 : vectors * (vectors - 1) / 2; }

  size_t vectors() const { return vectors_; }
  /// One value per pair (a, b), a < b, in the order (0, 1), (0, 2) … (1, 2) ….
  std::span<double> pairs() { return pairs_; }
  double between(size_t a, size_t b) const {
    if (a == b) return 0;
    const size_t low = a < b ? a : b, high = a < b ? b : a;
    return pairs_[low * (2 * vectors_ - low - 1) / 2 + (high - low - 1)];
  }
  /// Adds the distances of another range of elements.
  SquaredDistances& operator+=(const SquaredDistances& part) {
    for (size_t i = 0; i < pairs_.size(); ++i) pairs_[i] += part.pairs_[i];
    return *this;
  }

 private:
  size_t vectors_ = 0;
  std::vector<double> pairs_;
};

/// a · b for each pair of a set of vectors, including each vector with itself, summed in double. Element i is
/// accumulated in lane i modulo kLanes, and the lanes are summed only on a read. The result is therefore
/// bit-identical however the vectors are split into consecutive ranges, if the splits are at multiples of
/// kLanes. A value type.
class InnerProducts {
 public:
  static constexpr size_t kLanes = 16;

  InnerProducts() = default;
  explicit InnerProducts(size_t vectors) : vectors_(vectors), lanes_(pairCount(vectors) * kLanes) {}

  static size_t pairCount(size_t vectors) { return vectors * (vectors + 1) / 2; }

  size_t vectors() const { return vectors_; }
  /// kLanes partial sums for each pair, in the order (0, 0), (0, 1) … (1, 1), (1, 2) ….
  std::span<double> lanes() { return lanes_; }
  double between(size_t a, size_t b) const {
    const size_t low = std::min(a, b), high = std::max(a, b);
    const size_t pair = low * (2 * vectors_ - low + 1) / 2 + (high - low);
    double sum = 0;
    for (size_t lane = 0; lane < kLanes; ++lane) sum += lanes_[pair * kLanes + lane];
    return sum;
  }

 private:
  size_t vectors_ = 0;
  std::vector<double> lanes_;
};

}  // namespace psd
