#include "server/policy/aggregator/trimmed_mean.h"

namespace psd {

std::shared_ptr<const Aggregator> TrimmedMean::read(ConfigReader options) {
  uint32_t trim = 1;
  options.integer({"trim", "Number of values left out at each end."}, trim, 1, kContributionsMax);
  return std::make_shared<TrimmedMean>(trim);
}

Combination TrimmedMean::combine(std::span<const double>, const SquaredDistances&) const {
  return {.kind = Combination::Kind::trimmedMean, .weights = {}, .trim = trim_};
}

}  // namespace psd
