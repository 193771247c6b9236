#include "trainer/client/transport/encoded_pushes.h"

#include <cmath>
#include <vector>

#include "test/contract/codec_trainer.h"

namespace psd::client_encoded_pushes_test {
namespace {

using testing::codecNamed;
using testing::normalValues;
using testing::Random;

constexpr uint64_t kElements = 4'096, kCount = 2'048;
const std::vector<Slice> kSlices = {{ShardId{0}, 0, kCount, 0}, {ShardId{1}, 0, kCount, kCount}};

EncodedPushes pushesOf(const std::shared_ptr<const Codec>& codec) { return {codec, kSlices, 7}; }

std::vector<std::byte> copied(const GradientEncoder::Encoded& encoded) {
  return {encoded.bytes.begin(), encoded.bytes.end()};
}

void addTo(std::vector<double>& sum, const Codec& codec, const std::vector<std::byte>& bytes) {
  testing::EncodedBytes aligned(bytes.size());
  std::copy(bytes.begin(), bytes.end(), aligned.data());
  const std::vector<float> values = testing::decoded(codec, aligned, kCount);
  for (size_t i = 0; i < kCount; i++) sum[i] += values[i];
}

TEST_CASE("a slice that is sent again has the same bytes, whatever was encoded meanwhile") {
  for (const char* spec :
       {"fp16", "bf16", "int8", "topk:fraction=0.1", "randk", "onebit", "dgc:fraction=0.1"}) {
    INFO(spec);
    Random random(51);
    EncodedPushes pushes = pushesOf(codecNamed(spec));
    const auto first = normalValues(kCount, random), second = normalValues(kCount, random);
    const auto sent = pushes.encode(Step{1}, kSlices[0], first);
    PSD_REQUIRE_OK(sent);
    const auto bytes = copied(*sent);
    const auto next = pushes.encode(Step{2}, kSlices[0], second);
    PSD_REQUIRE_OK(next);
    const auto nextBytes = copied(*next);

    SECTION("not answered") {}
    SECTION("answered, while another slice of the push was not") { pushes.applied(Step{1}, kSlices[0]); }

    const auto again = pushes.encode(Step{1}, kSlices[0], first);
    PSD_REQUIRE_OK(again);
    CHECK(copied(*again) == bytes);
    const auto nextAgain = pushes.encode(Step{2}, kSlices[0], second);
    PSD_REQUIRE_OK(nextAgain);
    CHECK(copied(*nextAgain) == nextBytes);
  }
}

TEST_CASE("the gradients arrive once in sum, however often slices are sent, restored and sent after all") {
  const auto codec = codecNamed("topk:fraction=0.1");
  Random random(52);
  EncodedPushes pushes = pushesOf(codec);
  std::vector<double> wanted(kCount), arrived(kCount);
  for (uint64_t step = 1; step <= 300; step++) {
    const std::vector<float> gradient =
        step <= 40 ? normalValues(kCount, random) : std::vector<float>(kCount);
    for (size_t i = 0; i < kCount; i++) wanted[i] += gradient[i];
    auto sent = pushes.encode(Step{step}, kSlices[0], gradient);
    PSD_REQUIRE_OK(sent);
    if (step % 3 == 1) {  // the daemon dropped it, and drops it again after the connection broke
      pushes.restoreResidual(Step{step}, kSlices[0]);
      pushes.restoreResidual(Step{step}, kSlices[0]);
      if (step % 2 == 0) {
        PSD_REQUIRE_OK(pushes.encode(Step{step}, kSlices[0], gradient));
        pushes.restoreResidual(Step{step}, kSlices[0]);
      }
    } else {
      if (step % 3 == 2) {  // dropped by one daemon, applied by the next
        pushes.restoreResidual(Step{step}, kSlices[0]);
        sent = pushes.encode(Step{step}, kSlices[0], gradient);
        PSD_REQUIRE_OK(sent);
      }
      addTo(arrived, *codec, copied(*sent));
      pushes.applied(Step{step}, kSlices[0]);
      pushes.restoreResidual(Step{step}, kSlices[0]);  // an applied slice stays applied
    }
    pushes.finished(Step{step});
  }
  double worst = 0;
  for (size_t i = 0; i < kCount; i++) worst = std::max(worst, std::fabs(wanted[i] - arrived[i]));
  CHECK(worst < 1e-3);
}

TEST_CASE("a connection resumes the pushes of the previous one if codec and slices are the same") {
  const EncodedPushes pushes = pushesOf(codecNamed("int8"));
  CHECK(pushes.fits(*codecNamed("int8"), kSlices));
  CHECK_FALSE(pushes.fits(*codecNamed("fp16"), kSlices));
  CHECK_FALSE(pushes.fits(*codecNamed("int8"), {{ShardId{0}, 0, kElements, 0}}));
}

}  // namespace
}  // namespace psd::client_encoded_pushes_test
