#include "server/policy/aggregator/multi_krum.h"

#include <algorithm>

#include "server/policy/aggregator/krum_scores.h"

namespace psd {

std::shared_ptr<const Aggregator> MultiKrum::read(ConfigReader options) {
  uint32_t byzantine = 1, selected = 0;
  options.integer({"byzantine", "Number of contributions that may be arbitrary."}, byzantine, 0,
                  kContributionsMax);
  options.integer(
      {"selected", "Number of contributions in the mean. 0: all of the round but `byzantine` + 2."}, selected,
      0, kContributionsMax);
  return std::make_shared<MultiKrum>(byzantine, selected);
}

uint32_t MultiKrum::contributionsMin() const {
  return std::max(2 * byzantine_ + 3, selected_ + byzantine_ + 2);
}

Combination MultiKrum::combine(std::span<const double> weights, const SquaredDistances& distances) const {
  const auto count = static_cast<uint32_t>(weights.size());
  const uint32_t selected = selected_ != 0 ? selected_ : count - byzantine_ - 2;
  const std::vector<size_t> order = orderByKrumScore(distances, byzantine_);
  Combination combination;
  combination.weights.resize(count);
  for (uint32_t i = 0; i < selected; i++) combination.weights[order[i]] = 1.f / static_cast<float>(selected);
  return combination;
}

}  // namespace psd
