// Combination of gradients on CUDA, compared with the CPU's reference. Without a device every case is
// skipped.

#include "test/cuda/device_or_skip.h"
#include "test/support/combine_checks.h"

namespace psd::combine_cuda_test {
namespace {

using testing::CombineBench;
using testing::deviceOrSkip;

TEST_CASE("any number of gradients is combined on CUDA as a reference in double does it") {
  const auto cuda = deviceOrSkip();
  for (size_t count = 1; count <= 64; count++) {
    testing::checkCombinations(*cuda, count, 1000 + count, count % 2 == 0);
  }
  for (size_t elements : {1, 2, 3, 255, 256, 257, 300007})
    testing::checkCombinations(*cuda, 5, elements, false);
}

TEST_CASE("medians and trimmed means of the largest values do not overflow on CUDA") {
  testing::checkLargestValues(*deviceOrSkip());
}

TEST_CASE("combining gives the same bits on CUDA and on the CPU") {
  const auto cuda = deviceOrSkip();
  const auto cpu = makeCpuBackend();
  testing::Random random(3);
  for (size_t count : {1, 2, 3, 8, 33, 64}) {
    INFO(count << " gradients");
    const auto rows = testing::drawGradients(random, count, 70001, false);
    CombineBench onCuda(*cuda, rows), onCpu(*cpu, rows);
    for (const Combination& combination : testing::drawCombinations(random, count)) {
      CHECK((onCuda.combined(combination) == onCpu.combined(combination)));
    }
  }
}

TEST_CASE("distances on CUDA are those of a reference in double, and the same each time") {
  const auto cuda = deviceOrSkip();
  for (size_t elements : {1, 63, 64, 65, 20011}) {
    for (size_t count : {1, 2, 3, 9, 64}) testing::checkDistances(*cuda, count, elements);
  }
  testing::Random random(4);
  CombineBench bench(*cuda, testing::drawGradients(random, 20, 100003, false));
  const SquaredDistances first = bench.distances(), second = bench.distances();
  for (size_t other = 1; other < 20; other++) CHECK(first.between(0, other) == second.between(0, other));
}

TEST_CASE("inner products and weights by ranges give the same bits on CUDA and on the CPU") {
  const auto cuda = deviceOrSkip();
  const auto cpu = makeCpuBackend();
  for (size_t elements : {1, 16, 17, 5003}) {
    for (size_t count : {1, 2, 9, 64}) testing::checkProducts(*cuda, count, elements);
  }
  testing::Random random(6);
  const auto rows = testing::drawGradients(random, 9, 70001, false);
  CombineBench onCuda(*cuda, rows), onCpu(*cpu, rows);
  const InnerProducts ours = onCuda.products({70001}), theirs = onCpu.products({70001});
  for (size_t a = 0; a < 9; a++) {
    for (size_t b = a; b < 9; b++) CHECK(ours.between(a, b) == theirs.between(a, b));
  }
  const Combination ranges = testing::drawRanges(random, 9, 70001);
  CHECK((onCuda.combined(ranges) == onCpu.combined(ranges)));
}

TEST_CASE("more than 64 gradients are added up on CUDA, but neither sorted nor compared") {
  const auto cuda = deviceOrSkip();
  testing::Random random(5);
  const auto rows = testing::drawGradients(random, 130, 1000, false);
  CombineBench bench(*cuda, rows);
  Combination sum;
  sum.weights.assign(130, 0.01f);
  const auto expected = testing::combinedReference(rows, sum);
  const auto actual = bench.combined(sum);
  for (size_t i = 0; i < expected.size(); i++) REQUIRE(std::abs(actual[i] - expected[i]) < 1e-4);
  const Combination median{.kind = Combination::Kind::trimmedMean, .weights = {}, .trim = 64};
  const Status refused = bench.calls().applyCombined(bench.staged(), median, {1, 1.0});
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::invalidArgument);
  CHECK_FALSE(bench.calls().squaredDistances(bench.staged()).ok());
  CHECK_FALSE(bench.calls().addProducts(bench.staged(), 0, 16, InnerProducts(130)).ok());
}

TEST_CASE("a staged gradient outlives the memory that it came from") {
  const auto cuda = deviceOrSkip();
  std::vector<std::vector<float>> rows(3, std::vector<float>(5000, 2.f));
  CombineBench bench(*cuda, rows);
  for (auto& row : rows) std::fill(row.begin(), row.end(), 7.f);
  const Combination median{.kind = Combination::Kind::trimmedMean, .weights = {}, .trim = 1};
  CHECK(bench.combined(median) == std::vector<float>(5000, 2.f));
}

TEST_CASE("no more is staged on CUDA than the limit allows, and there is room again when a gradient goes") {
  const auto cuda = deviceOrSkip();
  constexpr uint64_t kElements = 65536;  // 256 KiB
  cuda->limitStagedBytes(2 * kElements * sizeof(float));
  const std::vector<float> row(kElements, 2.f);
  CombineBench bench(*cuda, {row});
  {
    const auto second = bench.calls().stage(ReadView{row, nullptr});
    PSD_REQUIRE_OK(second);
    const auto third = bench.calls().stage(ReadView{row, nullptr});
    REQUIRE_FALSE(third.ok());
    CHECK(third.error().code == ErrorCode::overloaded);
    CHECK_THAT(third.message(),
               Catch::Matchers::Contains("not enough memory to gather a gradient (limits.staged_bytes)"));
  }
  PSD_REQUIRE_OK(bench.calls().stage(ReadView{row, nullptr}));
}

}  // namespace
}  // namespace psd::combine_cuda_test
