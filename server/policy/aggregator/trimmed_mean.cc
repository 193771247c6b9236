#include "server/policy/aggregator/trimmed_mean.h"

namespace psd {

std::shared_ptr<const Aggregator> TrimmedMean::read(ObjectReader& options) {
  return std::make_shared<TrimmedMean>(
      static_cast<uint32_t>(options.integer("trim", 1, 1, kContributionsMax)));
}

Combination TrimmedMean::combine(std::span<const double>, const SquaredDistances&) const {
  return {.kind = Combination::Kind::trimmedMean, .weights = {}, .trim = trim_};
}

}  // namespace psd
