#include <cfloat>

#include "server/store/cpu/racy_loops.h"
#include "server/store/squared_norm.h"
#include "test/support/change_checks.h"
#include "test/support/finite_values.h"

namespace psd::gradient_change_test {
namespace {

using testing::Random;

TEST_CASE("clipped and compensated gradients change weights like a reference in double") {
  const auto backend = makeCpuBackend();
  for (size_t elements : {1, 15, 16, 33, 4095, 4096, 4097, 10007}) testing::checkChanges(*backend, elements);
}

TEST_CASE("gradients that a codec made are changed likewise") {
  const auto backend = makeCpuBackend();
  for (const char* name : {"fp16", "int8", "e3m0", "int4", "topk:fraction=0.1", "onebit"}) {
    const auto codec = makeCodec(name);
    PSD_REQUIRE_OK(codec);
    for (size_t elements : {17, 5003}) testing::checkChanges(*backend, elements, codec->get());
  }
}

TEST_CASE("the combined gradient of a round has its norm, and is clipped like a reference in double") {
  const auto backend = makeCpuBackend();
  for (size_t elements : {1, 16, 4097, 10007}) testing::checkCombinedChanges(*backend, elements);
}

TEST_CASE("compensated finite values are finite") {
  const std::vector<float> values = testing::finiteValues();
  size_t notFinite = 0, notKept = 0;
  for (const float lambda : {1e-9f, 0.04f, 2.f, 1e9f}) {
    const ElementChange change{1, INFINITY, lambda};
    for (const float g : values) {
      for (const float w : values) {
        if (change.compensated(g, w, w) != g) notKept++;  // the weights did not change
        for (const float pulled : values) {
          if (!std::isfinite(change.compensated(g, w, pulled))) notFinite++;
          for (float meanSquare : {0.f, 1e-30f, 1.f, FLT_MAX}) {
            if (!std::isfinite(change.compensatedAdaptively(g, w, pulled, meanSquare))) notFinite++;
            if (!std::isfinite(meanSquare)) notFinite++;
          }
        }
      }
    }
  }
  CHECK(notFinite == 0);
  CHECK(notKept == 0);
}

TEST_CASE("the vectorised compensation of finite values equals that of one element") {
  std::vector<float> g, w, pulled;
  for (const float one : testing::finiteValues()) {
    for (const float other : testing::finiteValues()) {
      g.push_back(one);
      w.push_back(other);
      pulled.push_back(g.size() % 3 == 0 ? other : one);
    }
  }
  for (const bool adaptive : {false, true}) {
    INFO(adaptive);
    const ElementChange change{1, INFINITY, 0.04f};
    std::vector<float> meanSquares(g.size()), changed = g;
    for (int i = 0; i < 2; i++) {
      const auto before = meanSquares;
      changed = g;
      racyChange(change, g.size(), w.data(), pulled.data(), adaptive ? meanSquares.data() : nullptr,
                 changed.data());
      size_t different = 0;
      for (size_t e = 0; e < g.size(); e++) {
        float square = before[e];
        const float expected = adaptive ? change.compensatedAdaptively(g[e], w[e], pulled[e], square)
                                        : change.compensated(g[e], w[e], pulled[e]);
        if (changed[e] != expected || !std::isfinite(changed[e]) || meanSquares[e] != square) different++;
      }
      CHECK(different == 0);
    }
  }
}

TEST_CASE("a squared norm matches a reference in double, for huge values too") {
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
}  // namespace psd::gradient_change_test
