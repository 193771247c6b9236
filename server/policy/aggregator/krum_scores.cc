#include "server/policy/aggregator/krum_scores.h"

#include <algorithm>
#include <numeric>

namespace psd {

std::vector<size_t> orderByKrumScore(const SquaredDistances& distances, uint32_t byzantine) {
  const size_t count = distances.vectors();
  const auto nearest = static_cast<ptrdiff_t>(count - byzantine - 2);
  std::vector<double> scores;
  for (size_t one = 0; one < count; one++) {
    std::vector<double> others;
    for (size_t other = 0; other < count; other++) {
      if (other != one) others.push_back(distances.between(one, other));
    }
    std::partial_sort(others.begin(), others.begin() + nearest, others.end());
    scores.push_back(std::accumulate(others.begin(), others.begin() + nearest, 0.0));
  }
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] < scores[b]; });
  return order;
}

}  // namespace psd
