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

TEST_CASE("without a type it is the mean, weighted by samples") {
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

TEST_CASE("krum is not led astray by f who agree, nor by infinite distances") {
  const auto krum = parse(R"({"type": "krum", "byzantine": 2})");
  const Combination chosen = krum->combine(Samples(7, 1), onLine({50, 50, 0, 0.1, 0.2, 0.35, 0.5}));
  CHECK(chosen.weights[0] + chosen.weights[1] == 0);
  const double inf = std::numeric_limits<double>::infinity();
  SquaredDistances distances = onLine({1, 2, 3, 4, 5, 6, 7});
  for (size_t pair = 0; pair < 6; pair++) distances.pairs()[pair] = inf;  // of contribution 0
  CHECK(krum->combine(Samples(7, 1), distances).weights[0] == 0);
}

TEST_CASE("of two with the same score krum takes the first") {
  CHECK(orderByKrumScore(onLine({0, 1, 2, 3}), 0).front() == 1);
  CHECK(orderByKrumScore(onLine({5, 5, 5, 5, 5}), 1) == std::vector<size_t>{0, 1, 2, 3, 4});
}

TEST_CASE("krum scores are those of the definition, for any number of contributions") {
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

TEST_CASE("what cannot be is refused with its place") {
  using Catch::Matchers::Contains;
  CHECK_THAT(problem(R"({"type": "meen"})"), Contains("type") && Contains("mean"));
  CHECK_THAT(problem(R"({"type": "trimmed_mean", "trim": 0})"), Contains("trim"));
  CHECK_THAT(problem(R"({"type": "krum", "byzantine": -1})"), Contains("byzantine"));
  CHECK_THAT(problem(R"({"type": "median", "trim": 1})"), Contains("trim"));
}

}  // namespace
}  // namespace psd::aggregator_test
