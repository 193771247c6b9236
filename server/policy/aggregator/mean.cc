#include "server/policy/aggregator/mean.h"

#include <numeric>

namespace psd {

std::shared_ptr<const Aggregator> Mean::read(ConfigReader) { return std::make_shared<Mean>(); }

Combination Mean::combine(std::span<const double> weights, const SquaredDistances&) const {
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  Combination combination;
  for (const double some : weights) {
    // If no trainer reports samples, all contributions count equally.
    const double weight = all > 0 ? some / all : 1.0 / static_cast<double>(weights.size());
    combination.weights.push_back(static_cast<float>(weight));
  }
  return combination;
}

}  // namespace psd
