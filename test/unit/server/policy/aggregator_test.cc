#include "server/policy/aggregator/aggregator.h"

#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "server/policy/aggregator/krum_scores.h"
#include "test/support/catch.h"
#include "test/support/random.h"

namespace psd::aggregator_test {
namespace {

using Kind = Combination::Kind;
using Samples = std::vector<double>;

std::shared_ptr<const Aggregator> parse(const std::string& json) {
  ObjectReader reader(nlohmann::ordered_json::parse(json));
  auto aggregator = readAggregator(reader);
  PSD_REQUIRE_OK(reader.finish());
  return aggregator;
}

std::string problem(const std::string& json) {
  ObjectReader reader(nlohmann::ordered_json::parse(json));
  readAggregator(reader);
  return reader.finish().message();
}

/// Distances of points on a line.
SquaredDistances onLine(const std::vector<double>& points) {
  SquaredDistances distances(points.size());
  double* pair = distances.pairs().data();
  for (size_t a = 0; a < points.size(); a++) {
    for (size_t b = a + 1; b < points.size(); b++)
      *pair++ = (points[a] - points[b]) * (points[a] - points[b]);
  }
  return distances;
}

TEST_CASE("the default is the mean, weighted by samples") {
  const auto mean = parse("{}");
  CHECK(mean->name() == "mean");
  CHECK(mean->contributionsMin() == 1);
  CHECK_FALSE(mean->needsDistances());
  const Combination combination = mean->combine(Samples{32, 32, 64}, {});
  CHECK(combination.kind == Kind::weightedSum);
  CHECK(combination.weights == std::vector<float>{0.25f, 0.25f, 0.5f});
  CHECK(mean->combine(Samples{0, 0}, {}).weights == std::vector<float>{0.5f, 0.5f});
  CHECK(mean->combine(Samples{UINT32_MAX, UINT32_MAX}, {}).weights == std::vector<float>{0.5f, 0.5f});
}

TEST_CASE("the median trims all but the middle") {
  const auto median = parse(R"({"type": "median"})");
  CHECK(median->contributionsMin() == 1);
  for (uint32_t count : {1, 2, 3, 4, 5, 64}) {
    const Combination combination = median->combine(Samples(count, 8), {});
    CHECK(combination.kind == Kind::trimmedMean);
    CHECK(count - 2 * combination.trim == (count % 2 == 0 ? 2 : 1));
  }
}

TEST_CASE("a trimmed mean needs more contributions than it drops") {
  CHECK(parse(R"({"type": "trimmed_mean"})")->combine(Samples(3, 1), {}).trim == 1);
  const auto trimmed = parse(R"({"type": "trimmed_mean", "trim": 4})");
  CHECK(trimmed->contributionsMin() == 9);
  CHECK(trimmed->combine(Samples(9, 1), {}).trim == 4);
}

TEST_CASE("krum chooses the contribution in the middle of the crowd") {
  const auto krum = parse(R"({"type": "krum", "byzantine": 1})");
  CHECK(krum->contributionsMin() == 5);
  CHECK(krum->needsDistances());
  // n − f − 2 = 2 nearest others: 1.0 has 0.9 and 1.2, a sum of 0.05; 0.9 has 1.0 and 1.2, of 0.1.
  const Combination chosen = krum->combine(Samples(5, 1), onLine({1000, 0.9, 2.0, 1.0, 1.2}));
  CHECK(chosen.kind == Kind::weightedSum);
  CHECK(chosen.weights == std::vector<float>{0, 0, 0, 1, 0});
}

TEST_CASE("krum withstands f colluding contributions and infinite distances") {
  const auto krum = parse(R"({"type": "krum", "byzantine": 2})");
  const Combination chosen = krum->combine(Samples(7, 1), onLine({50, 50, 0, 0.1, 0.2, 0.35, 0.5}));
  CHECK(chosen.weights[0] + chosen.weights[1] == 0);
  const double inf = std::numeric_limits<double>::infinity();
  SquaredDistances distances = onLine({1, 2, 3, 4, 5, 6, 7});
  for (size_t pair = 0; pair < 6; pair++) distances.pairs()[pair] = inf;  // of contribution 0
  CHECK(krum->combine(Samples(7, 1), distances).weights[0] == 0);
}

TEST_CASE("of two with the same score krum chooses the first") {
  CHECK(orderByKrumScore(onLine({0, 1, 2, 3}), 0).front() == 1);
  CHECK(orderByKrumScore(onLine({5, 5, 5, 5, 5}), 1) == std::vector<size_t>{0, 1, 2, 3, 4});
}

TEST_CASE("krum scores match the definition, for any number of contributions") {
  testing::Random random(7);
  for (int round = 0; round < 300; round++) {
    const auto byzantine = static_cast<uint32_t>(random.below(5));
    const size_t count = random.between(2 * byzantine + 3, 20);
    std::vector<double> points;
    for (size_t i = 0; i < count; i++) points.push_back(static_cast<double>(random.below(1000)));
    std::vector<std::pair<double, size_t>> expected;
    for (size_t i = 0; i < count; i++) {
      std::vector<double> others;
      for (size_t j = 0; j < count; j++) {
        if (j != i) others.push_back((points[i] - points[j]) * (points[i] - points[j]));
      }
      std::sort(others.begin(), others.end());
      others.resize(count - byzantine - 2);
      expected.emplace_back(std::accumulate(others.begin(), others.end(), 0.0), i);
    }
    std::sort(expected.begin(), expected.end());
    const auto order = orderByKrumScore(onLine(points), byzantine);
    REQUIRE(order.size() == count);
    for (size_t i = 0; i < count; i++) REQUIRE(order[i] == expected[i].second);
  }
}

TEST_CASE("multi_krum is the mean of the best") {
  const auto best = parse(R"({"type": "multi_krum", "byzantine": 1})");
  CHECK(best->contributionsMin() == 5);
  const Combination some = best->combine(Samples(6, 1), onLine({1000, 0.9, 2.0, 1.0, 1.2, 0.95}));
  CHECK(some.kind == Kind::weightedSum);
  CHECK(std::abs(std::accumulate(some.weights.begin(), some.weights.end(), 0.f) - 1) < 1e-6);
  CHECK(std::count(some.weights.begin(), some.weights.end(), 1.f / 3) == 3);
  CHECK(some.weights[0] + some.weights[2] == 0);
  const auto two = parse(R"({"type": "multi_krum", "byzantine": 1, "selected": 7})");
  CHECK(two->contributionsMin() == 10);
}

/// The inner products of some vectors.
InnerProducts productsOf(const std::vector<std::vector<float>>& vectors) {
  InnerProducts products(vectors.size());
  double* lanes = products.lanes().data();
  for (size_t a = 0; a < vectors.size(); a++) {
    for (size_t b = a; b < vectors.size(); b++, lanes += InnerProducts::kLanes) {
      for (size_t i = 0; i < vectors[a].size(); i++) {
        lanes[i % InnerProducts::kLanes] += double{vectors[a][i]} * vectors[b][i];
      }
    }
  }
  return products;
}

/// The result of rda for contributions to the tensor "w".
std::vector<double> rdaOf(const std::vector<std::vector<float>>& vectors, const Samples& samples,
                          const std::string& json = R"({"type": "rda"})") {
  const auto weights = parse(json)->weigh("w", samples, productsOf(vectors));
  REQUIRE(weights.size() == vectors.size());
  std::vector<double> sum(vectors[0].size());
  for (size_t k = 0; k < vectors.size(); k++) {
    CHECK(std::isfinite(weights[k]));
    for (size_t i = 0; i < sum.size(); i++) sum[i] += double{weights[k]} * vectors[k][i];
  }
  return sum;
}

void checkNear(const std::vector<double>& actual, const std::vector<double>& expected) {
  REQUIRE(actual.size() == expected.size());
  for (size_t i = 0; i < actual.size(); i++) CHECK(std::abs(actual[i] - expected[i]) < 1e-6);
}

TEST_CASE("rda is, per tensor, the mean length in the mean direction") {
  const auto rda = parse(R"({"type": "rda"})");
  CHECK(rda->contributionsMin() == 1);
  CHECK(rda->byTensor());
  CHECK(rda->weighs());
  // A single contribution is returned bit for bit, and so are equal ones.
  for (const float scale : {1e-20f, 0.1f, 1.f, 1e15f}) {
    const std::vector<std::vector<float>> one{{0.1f * scale, -2.f * scale, 3.f * scale}};
    CHECK(rda->weigh("w", Samples{7}, productsOf(one)) == std::vector<float>{1});
    checkNear({rda->weigh("w", Samples{1, 1}, productsOf({one[0], one[0]}))[0]}, {0.5});
  }
  checkNear(rdaOf({{3, 4}, {3, 4}, {3, 4}}, {1, 5, 2}), {3, 4});
  // Orthogonal ones: the length of one, where the mean has 1 / √2 of it.
  checkNear(rdaOf({{2, 0}, {0, 2}}, {1, 1}), {std::sqrt(2), std::sqrt(2)});
  // (Σ w‖Δ‖ / Σ w) · φ(Σ w φ(Δ)): the lengths are 2 and 6, their mean (1 · 2 + 3 · 6) / 4 = 5, along (1, 3).
  checkNear(rdaOf({{2, 0}, {0, 6}}, {1, 3}), {5 / std::sqrt(10), 15 / std::sqrt(10)});
  checkNear(rdaOf({{2, 0}, {0, 2}}, {0, 0}), {std::sqrt(2), std::sqrt(2)});
  checkNear(rdaOf({{2, 0}, {0, 2}}, {1, 0}), {2, 0});
}

TEST_CASE("where directions cancel rda is the weighted mean, and of zeros zero") {
  checkNear(rdaOf({{1, 2, 3}, {-1, -2, -3}}, {1, 1}), {0, 0, 0});
  checkNear(rdaOf({{1, 2, 3}, {-3, -6, -9}}, {1, 1}), {-1, -2, -3});
  checkNear(rdaOf({{0, 0}, {0, 0}}, {1, 2}), {0, 0});
  // A zero has no direction, but its length counts; so does that of a tiny one.
  checkNear(rdaOf({{0, 0}, {3, 4}}, {1, 1}), {1.5, 2});
  checkNear(rdaOf({{1e-30f, 0}, {3, 4}}, {1, 1}), {1.5, 2});
}

TEST_CASE("rda applies the mean to tensors that `direct` names") {
  const std::string json = R"({"type": "rda", "direct": ["embed*", "w"]})";
  const auto rda = parse(json);
  CHECK_FALSE(rda->needsProducts("embedding.weight"));
  CHECK(rda->needsProducts("head"));
  CHECK(rda->weigh("w", Samples{1, 3}, {}) == std::vector<float>{0.25f, 0.75f});
  checkNear(rdaOf({{2, 0}, {0, 2}}, {1, 1}, json), {1, 1});
  using Catch::Matchers::Contains;
  CHECK_THAT(problem(R"({"type": "rda", "direct": ["a["]})"), Contains("direct") && Contains("]"));
  CHECK_THAT(problem(R"({"type": "mean", "direct": ["a"]})"), Contains("direct"));
}

TEST_CASE("an invalid configuration is rejected with its place") {
  using Catch::Matchers::Contains;
  CHECK_THAT(problem(R"({"type": "meen"})"), Contains("type") && Contains("mean"));
  CHECK_THAT(problem(R"({"type": "trimmed_mean", "trim": 0})"), Contains("trim"));
  CHECK_THAT(problem(R"({"type": "krum", "byzantine": -1})"), Contains("byzantine"));
  CHECK_THAT(problem(R"({"type": "median", "trim": 1})"), Contains("trim"));
}

}  // namespace
}  // namespace psd::aggregator_test
