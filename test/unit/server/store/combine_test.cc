#include "test/support/combine_checks.h"

namespace psd::combine_test {
namespace {

using testing::CombineBench;

TEST_CASE("combinations of any number of gradients match a reference in double") {
  const auto backend = makeCpuBackend();
  for (size_t count = 1; count <= 64; count++) {
    testing::checkCombinations(*backend, count, 64 * 2 + count % 64, count % 2 == 0);
  }
  testing::checkCombinations(*backend, 100, 130, false);
}

TEST_CASE("medians and trimmed means of the largest values do not overflow") {
  testing::checkLargestValues(*makeCpuBackend());
}

TEST_CASE("gradients of any length are combined to their last element") {
  const auto backend = makeCpuBackend();
  for (size_t elements : {1, 2, 15, 16, 17, 63, 64, 65, 4095, 4096, 4097, 10007}) {
    for (size_t count : {1, 2, 5, 8}) testing::checkCombinations(*backend, count, elements, false);
  }
}

TEST_CASE("distances match a reference in double") {
  const auto backend = makeCpuBackend();
  for (size_t elements : {1, 15, 16, 17, 511, 512, 513, 5003}) {
    for (size_t count : {1, 2, 3, 9}) testing::checkDistances(*backend, count, elements);
  }
  testing::checkDistances(*backend, 64, 1000);
}

TEST_CASE("inner products have the same bits wherever the vectors are cut") {
  const auto backend = makeCpuBackend();
  for (size_t elements : {1, 15, 16, 17, 511, 512, 513, 5003}) {
    for (size_t count : {1, 2, 3, 9}) testing::checkProducts(*backend, count, elements);
  }
  testing::checkProducts(*backend, 64, 1000);
}

TEST_CASE("distances that overflow are infinite, never NaN, and do not change the others") {
  const auto backend = makeCpuBackend();
  const float huge = 3e38f;
  const std::vector<std::vector<float>> rows{std::vector<float>(40, 1.f), std::vector<float>(40, 2.f),
                                             std::vector<float>(40, huge), std::vector<float>(40, -huge)};
  const SquaredDistances distances = CombineBench(*backend, rows).distances();
  CHECK(distances.between(0, 1) == 40);
  for (size_t other : {0, 1, 3})
    CHECK(distances.between(2, other) == std::numeric_limits<double>::infinity());
}

TEST_CASE("a gradient of weight 0 is not read") {
  const auto backend = makeCpuBackend();
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<std::vector<float>> rows{std::vector<float>(70, inf), std::vector<float>(70, 4.f)};
  Combination combination;
  combination.weights = {0, 0.5f};
  CHECK(CombineBench(*backend, rows).combined(combination) == std::vector<float>(70, 2.f));
}

TEST_CASE("distances of the parts of a model add up") {
  SquaredDistances all(3), part(3);
  std::ranges::copy(std::vector<double>{1, 2, 3}, all.pairs().begin());
  std::ranges::copy(std::vector<double>{10, 20, 30}, part.pairs().begin());
  all += part;
  CHECK(all.between(0, 1) == 11);
  CHECK(all.between(2, 0) == 22);
  CHECK(all.between(1, 2) == 33);
}

TEST_CASE("a combined gradient goes through the optimizer with its state") {
  const auto backend = makeCpuBackend();
  Optimizer optimizer;
  optimizer.algorithm = Sgd{.momentum = 0.5};
  auto shards = backend->allocate(std::vector<uint64_t>{5000}, optimizer);
  PSD_REQUIRE_OK(shards);
  testing::StorageCalls calls(*backend, *(*shards)[0]);
  const std::vector<float> two(5000, 2.f), four(5000, 4.f);
  const std::vector<StagedGradient> staged{{two, nullptr}, {four, nullptr}};
  const Combination median{.kind = Combination::Kind::trimmedMean, .weights = {}, .trim = 0};
  PSD_REQUIRE_OK(calls.applyCombined(staged, median, {1, 1.0}));
  PSD_REQUIRE_OK(calls.applyCombined(staged, median, {2, 1.0}));
  CHECK(testing::copyOf(*calls.read(0, 5000)) == std::vector<float>(5000, -3.f - 4.5f));
}

}  // namespace
}  // namespace psd::combine_test
