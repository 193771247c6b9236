#include "server/policy/aggregator/median.h"

namespace psd {

std::shared_ptr<const Aggregator> Median::read(ConfigReader) { return std::make_shared<Median>(); }

Combination Median::combine(std::span<const double> weights, const SquaredDistances&) const {
  // Trims all except the one or two middle contributions.
  const auto count = static_cast<uint32_t>(weights.size());
  return {.kind = Combination::Kind::trimmedMean, .weights = {}, .trim = (count - 1) / 2};
}

}  // namespace psd
