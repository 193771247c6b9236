#pragma once

#include "server/policy/aggregator/aggregator.h"

namespace psd {

/// The elementwise median; for an even number of contributions, the mean of the two middle values (Yin, Chen,
/// Ramchandran, Bartlett 2018). All contributions count equally, regardless of their samples. Tolerates fewer
/// than half arbitrary contributions.
class Median final : public Aggregator {
 public:
  static std::shared_ptr<const Aggregator> read(ConfigReader options);

  std::string_view name() const override { return "median"; }
  Combination combine(std::span<const double> weights, const SquaredDistances&) const override;
};

}  // namespace psd
