#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "server/store/combination.h"
#include "server/store/sorting_network.h"

namespace psd {

/// Makes one gradient of several in host memory, a block at a time. Immutable after construction, but each
/// object has one buffer: owned by one thread.
class Combiner {
 public:
  /// Most elements that one call of combine() makes.
  static constexpr uint64_t kBlockElements = 4096;

  /// `gradients` are of equal length and, like `combination`, outlive the combiner.
  Combiner(std::span<const StagedGradient> gradients, const Combination& combination);

  /// out[0 … count) = the combination of elements offset … offset + count.
  void combine(uint64_t offset, uint64_t count, float* out);

 private:
  void weightedSum(std::span<const float> weights, uint64_t offset, uint64_t count, float* out) const;
  void trimmedMean(uint64_t offset, uint64_t count, float* out);

  const std::span<const StagedGradient> gradients_;
  const Combination& combination_;
  std::vector<Comparator> network_;  // of a trimmed mean
  std::vector<float> tile_;          // of a trimmed mean: some elements of each gradient, in rows
};

/// ‖a − b‖² for each pair of gradients of equal length in host memory; summed in float over some dozen
/// elements, then in double.
SquaredDistances squaredDistances(std::span<const StagedGradient> gradients);

/// Adds the products of `count` elements from `offset` on, a multiple of InnerProducts::kLanes, of gradients
/// of equal length in host memory.
void addProducts(std::span<const StagedGradient> gradients, uint64_t offset, uint64_t count,
                 InnerProducts& sums);

}  // namespace psd
