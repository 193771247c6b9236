#pragma once

#include "server/policy/aggregator/aggregator.h"

namespace psd {

/// The median of each element, of an even number the mean of the two in the middle (Yin, Chen, Ramchandran,
/// Bartlett 2018). Each contribution counts alike, whatever its samples; fewer than half may be arbitrary.
class Median final : public Aggregator {
 public:
  static std::shared_ptr<const Aggregator> read(ObjectReader& options);

  std::string_view name() const override { return "median"; }
  Combination combine(std::span<const double> weights, const SquaredDistances&) const override;
};

}  // namespace psd
