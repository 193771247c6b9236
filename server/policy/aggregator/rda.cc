#include "server/policy/aggregator/rda.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/config/globs.h"

namespace psd {
namespace {

// A weighted sum of unit vectors shorter than this, relative to the sum of the weights, is rounding error:
// the directions cancel.
constexpr double kCancels = 1e-6;
// A contribution shorter than this, relative to the longest one, has no meaningful direction.
constexpr double kShortest = 1e-18;

}  // namespace

std::shared_ptr<const Aggregator> Rda::read(ConfigReader options) {
  std::vector<std::string> direct;
  options.globs({"direct",
                 "Names of tensors, such as embeddings, whose contributions are averaged instead: a glob or "
                 "a list of globs. Each must match a tensor of the model."},
                direct);
  return std::make_shared<Rda>(std::move(direct));
}

bool Rda::needsProducts(const std::string& tensor) const { return !anyMatches(direct_, tensor); }

std::vector<float> Rda::weigh(const std::string& tensor, std::span<const double> given,
                              const InnerProducts& products) const {
  const std::vector<float> mean = combine(given, {}).weights;
  if (!needsProducts(tensor)) return mean;
  const size_t count = given.size();
  std::vector<double> weights(given.begin(), given.end());
  double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (all <= 0) {
    // If no trainer reports samples, all contributions count equally.
    std::ranges::fill(weights, 1.0);
    all = static_cast<double>(count);
  }
  std::vector<double> squares, lengths;
  for (size_t i = 0; i < count; i++) {
    squares.push_back(products.between(i, i));
    lengths.push_back(std::sqrt(squares.back()));
  }
  const double longest = *std::ranges::max_element(lengths);
  const auto hasDirection = [&](size_t i) { return lengths[i] > kShortest * longest; };
  double meanLength = 0, square = 0;  // square = ‖Σ w φ(Δ)‖²
  for (size_t i = 0; i < count; i++) {
    meanLength += weights[i] * lengths[i] / all;
    if (!hasDirection(i)) continue;
    square += weights[i] * weights[i];
    for (size_t j = i + 1; j < count; j++) {
      if (!hasDirection(j)) continue;
      const double cosine = products.between(i, j) / std::sqrt(squares[i] * squares[j]);
      square += 2 * weights[i] * weights[j] * std::clamp(cosine, -1.0, 1.0);
    }
  }
  const double direction = std::sqrt(std::max(square, 0.0));
  if (direction <= kCancels * all) return mean;
  std::vector<float> found;
  for (size_t i = 0; i < count; i++) {
    const double weight = hasDirection(i) ? meanLength / direction * (weights[i] / lengths[i]) : 0;
    found.push_back(static_cast<float>(weight));
  }
  return found;
}

}  // namespace psd
