#pragma once

// Plain C++ and no third-party header: .cu files include this.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "server/store/gradient_change.h"

namespace psd {

/// A gradient for a whole shard, in the memory of the shard's device (on CUDA not readable by the host) until
/// `owner` is released. Immutable.
struct StagedGradient {
  std::span<const float> values;
  std::shared_ptr<const void> owner;
};

/// How several gradients become one, element by element. A value type.
struct Combination {
  enum class Kind {
    weightedSum,  ///< the gradients times their weights, added up in their order
    trimmedMean,  ///< the mean, in ascending order, of what is left without the `trim` least and largest
  };
  Kind kind = Kind::weightedSum;
  std::vector<float> weights;  ///< one per gradient; one of weight 0 is not read
  uint32_t trim = 0;           ///< 2 · trim < number of gradients
  GradientChange change{};     ///< of the combined gradient; without compensation
};

/// ‖a − b‖² for each pair of some vectors. Infinite where squares overflow a float. A value type.
class SquaredDistances {
 public:
  SquaredDistances() = default;
  explicit SquaredDistances(size_t vectors) : vectors_(vectors), pairs_(pairCount(vectors)) {}

  static size_t pairCount(size_t vectors) { return vectors < 2 ? 0 : vectors * (vectors - 1) / 2; }

  size_t vectors() const { return vectors_; }
  /// The pairs (0, 1), (0, 2) … (1, 2) …; a < b.
  std::span<double> pairs() { return pairs_; }
  double between(size_t a, size_t b) const {
    if (a == b) return 0;
    const size_t low = a < b ? a : b, high = a < b ? b : a;
    return pairs_[low * (2 * vectors_ - low - 1) / 2 + (high - low - 1)];
  }
  /// Adds the distances over another part of the vectors.
  SquaredDistances& operator+=(const SquaredDistances& part) {
    for (size_t i = 0; i < pairs_.size(); ++i) pairs_[i] += part.pairs_[i];
    return *this;
  }

 private:
  size_t vectors_ = 0;
  std::vector<double> pairs_;
};

}  // namespace psd
