#include "server/store/squared_norm.h"
#include "test/support/change_checks.h"

namespace psd {
namespace {

using testing::Random;

TEST_CASE("clipped and compensated gradients change weights as a reference in double says") {
  const auto backend = makeCpuBackend();
  for (size_t elements : {1, 15, 16, 33, 4095, 4096, 4097, 10007}) testing::checkChanges(*backend, elements);
}

TEST_CASE("gradients that a codec made are changed likewise") {
  const auto backend = makeCpuBackend();
  for (const char* name : {"fp16", "int8", "topk:fraction=0.1", "onebit"}) {
    const auto codec = makeCodec(name);
    PSD_REQUIRE_OK(codec);
    for (size_t elements : {17, 5003}) testing::checkChanges(*backend, elements, codec->get());
  }
}

TEST_CASE("what a round combines to has its norm, and is clipped as a reference in double says") {
  const auto backend = makeCpuBackend();
  for (size_t elements : {1, 16, 4097, 10007}) testing::checkCombinedChanges(*backend, elements);
}

TEST_CASE("a squared norm is that of a reference in double, for huge values too") {
  for (size_t elements : {0, 1, 15, 16, 17, 1003}) {
    Random random(elements + 1);
    const auto values = testing::normalFloats(elements, random);
    double expected = 0;
    for (const float value : values) expected += double{value} * value;
    CHECK(std::abs(squaredNorm(values) - expected) <= 1e-12 * expected);
  }
  CHECK(squaredNorm(std::vector<float>(40, 3e38f)) > 1e77);
  CHECK(std::isfinite(squaredNorm(std::vector<float>(40, 3e38f))));
}

}  // namespace
}  // namespace psd
