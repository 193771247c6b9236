#include "server/policy/aggregator/mean.h"

#include <numeric>

namespace psd {

std::shared_ptr<const Aggregator> Mean::read(ObjectReader&) { return std::make_shared<Mean>(); }

Combination Mean::combine(std::span<const uint32_t> samples, const SquaredDistances&) const {
  const auto all = std::accumulate(samples.begin(), samples.end(), 0.0);
  Combination combination;
  for (const uint32_t some : samples) {
    // Where no trainer counts samples, all contributions count alike.
    const double weight = all > 0 ? some / all : 1.0 / static_cast<double>(samples.size());
    combination.weights.push_back(static_cast<float>(weight));
  }
  return combination;
}

}  // namespace psd
