#include "server/policy/aggregator/krum.h"

#include "server/policy/aggregator/krum_scores.h"

namespace psd {

std::shared_ptr<const Aggregator> Krum::read(ObjectReader& options) {
  return std::make_shared<Krum>(static_cast<uint32_t>(options.integer("byzantine", 1, 0, kContributionsMax)));
}

Combination Krum::combine(std::span<const double> weights, const SquaredDistances& distances) const {
  Combination combination;
  combination.weights.resize(weights.size());
  combination.weights[orderByKrumScore(distances, byzantine_).front()] = 1;
  return combination;
}

}  // namespace psd
