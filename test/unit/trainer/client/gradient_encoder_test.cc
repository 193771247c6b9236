#include "trainer/client/transport/gradient_encoder.h"

#include <cmath>
#include <limits>
#include <vector>

#include "test/contract/codec_trainer.h"

namespace psd::client_gradient_encoder_test {
namespace {

using testing::codecNamed;
using testing::normalValues;
using testing::Random;

constexpr uint64_t kBegin = 1'000, kCount = 3'000;

std::vector<std::byte> copied(const GradientEncoder::Encoded& encoded) {
  return {encoded.bytes.begin(), encoded.bytes.end()};
}

std::vector<float> decoded(const Codec& codec, const GradientEncoder::Encoded& encoded) {
  std::vector<float> values(kCount);
  PSD_REQUIRE_OK(codec.check(encoded.bytes, kCount));
  codec.decode(encoded.bytes, kCount, 0, values);
  return values;
}

TEST_CASE("the residual of one push is in the next ones") {
  Random random(41);
  for (const std::string name : {"fp16", "bf16", "int8", "topk:fraction=0.1", "dgc:fraction=0.1"}) {
    INFO(name);
    const auto codec = codecNamed(name);
    GradientEncoder encoder(codec, 7);
    const std::vector<float> gradient = normalValues(kCount, random), zeros(kCount);
    std::vector<float> arrived(kCount);
    for (uint64_t step = 1; step <= 200; step++) {
      const auto encoded = encoder.encode(Step{step}, kBegin, step == 1 ? gradient : zeros);
      PSD_REQUIRE_OK(encoded);
      const std::vector<float> values = decoded(*codec, *encoded);
      for (size_t i = 0; i < kCount; i++) arrived[i] += values[i];
    }
    // A velocity of 0.9 adds up to ten gradients, of which masking drops the remainder when a value is sent.
    const double most = codec->memorySlots() > 1 ? 10 : 1;
    double worst = 0;
    for (size_t i = 0; i < kCount; i++) {
      const double share = gradient[i] == 0 ? 1 : arrived[i] / gradient[i];
      const double error = share < 1 ? 1 - share : share > most ? share - most : 0;
      worst = std::max(worst, error * std::fabs(gradient[i]));
    }
    CHECK(worst < 1e-3);
  }
}

TEST_CASE("a push that was not applied is sent again whole, by the next step or the same one") {
  Random random(42);
  for (const char* spec : {"fp16", "bf16", "int8", "topk:fraction=0.1", "onebit", "dgc:fraction=0.1"}) {
    INFO(spec);
    const auto codec = codecNamed(spec);
    const std::vector<float> gradient = normalValues(kCount, random), zeros(kCount);
    GradientEncoder again(codec, 7), next(codec, 7);
    for (GradientEncoder* encoder : {&again, &next}) {
      PSD_REQUIRE_OK(encoder->encode(Step{1}, kBegin, zeros));
    }
    const auto first = again.encode(Step{2}, kBegin, gradient);
    PSD_REQUIRE_OK(first);
    again.restoreResidual(kBegin, kCount, first->bytes);
    const auto second = again.encode(Step{2}, kBegin, gradient);
    PSD_REQUIRE_OK(second);
    const std::vector<float> was = decoded(*codec, *first), is = decoded(*codec, *second);
    float worst = 0;
    for (size_t i = 0; i < kCount; i++) worst = std::max(worst, std::fabs(was[i] - is[i]));
    CHECK(worst < 1e-5f);

    if (codec->memorySlots() > 1) continue;  // continues with its velocity
    const auto lost = next.encode(Step{2}, kBegin, gradient);
    PSD_REQUIRE_OK(lost);
    next.restoreResidual(kBegin, kCount, lost->bytes);
    const auto later = next.encode(Step{3}, kBegin, zeros);
    PSD_REQUIRE_OK(later);
    const std::vector<float> came = decoded(*codec, *later);
    worst = 0;
    for (size_t i = 0; i < kCount; i++) worst = std::max(worst, std::fabs(was[i] - came[i]));
    CHECK(worst < 1e-5f);
  }
}

TEST_CASE("bytes that are still in use are not overwritten") {
  Random random(43);
  GradientEncoder encoder(codecNamed("int8"), 7);
  const auto first = encoder.encode(Step{1}, kBegin, normalValues(kCount, random));
  PSD_REQUIRE_OK(first);
  const std::vector<std::byte> before = copied(*first);
  for (uint64_t step = 2; step < 6; step++) {
    PSD_REQUIRE_OK(encoder.encode(Step{step}, kBegin, normalValues(kCount, random)));
  }
  CHECK(copied(*first) == before);
}

TEST_CASE("a gradient that is not finite, or beyond the codec's range, leaves no residual") {
  const std::vector<float> ones(kCount, 1.f);
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 1e5f}) {
    INFO(bad);
    const auto codec = codecNamed("fp16");
    GradientEncoder encoder(codec, 7);
    std::vector<float> gradient = ones;
    gradient[77] = bad;
    const auto refused = encoder.encode(Step{1}, kBegin, gradient);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code == ErrorCode::nonFinite);
    const auto encoded = encoder.encode(Step{2}, kBegin, ones);
    PSD_REQUIRE_OK(encoded);
    CHECK(decoded(*codec, *encoded) == ones);
  }
}

}  // namespace
}  // namespace psd::client_gradient_encoder_test
