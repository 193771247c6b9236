#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "server/store/combination.h"
#include "server/store/sorting_network.h"

namespace psd {

/// Combines several gradients in host memory into one, block by block. Has an internal buffer: owned by one
/// thread.
class Combiner {
 public:
  /// Maximum number of elements per call of combine().
  static constexpr uint64_t kBlockElements = 4096;

  /// `gradients` have equal length and, like `combination`, must outlive the combiner.
  Combiner(std::span<const StagedGradient> gradients, const Combination& combination);

  /// out[0 … count) = the combination of elements offset … offset + count.
  void combine(uint64_t offset, uint64_t count, float* out);

 private:
  void weightedSum(std::span<const float> weights, uint64_t offset, uint64_t count, float* out) const;
  void trimmedMean(uint64_t offset, uint64_t count, float* out);

  const std::span<const StagedGradient> gradients_;
  const Combination& combination_;
  std::vector<Comparator> network_;  // trimmed mean only
  std::vector<float> tile_;          // trimmed mean only: a row of elements per gradient
};

/// ‖a − b‖² for each pair of gradients of equal length in host memory; accumulated in float over a few dozen
/// elements, then in double.
SquaredDistances squaredDistances(std::span<const StagedGradient> gradients);

/// Adds the inner products over `count` elements from `offset` on, a multiple of InnerProducts::kLanes, of
/// gradients of equal length in host memory.
void addProducts(std::span<const StagedGradient> gradients, uint64_t offset, uint64_t count,
                 InnerProducts& sums);

}  // namespace psd
