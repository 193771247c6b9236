#include "server/policy/aggregator/krum.h"

#include "server/policy/aggregator/krum_scores.h"

namespace psd {

std::shared_ptr<const Aggregator> Krum::read(ConfigReader options) {
  uint32_t byzantine = 1;
  options.integer({"byzantine", "Number of contributions that may be arbitrary."}, byzantine, 0,
                  kContributionsMax);
  return std::make_shared<Krum>(byzantine);
}

Combination Krum::combine(std::span<const double> weights, const SquaredDistances& distances) const {
  Combination combination;
  combination.weights.resize(weights.size());
  combination.weights[orderByKrumScore(distances, byzantine_).front()] = 1;
  return combination;
}

}  // namespace psd
