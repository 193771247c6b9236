// Clipping and delay compensation on CUDA, compared with the CPU's reference. Without a device every case is
// skipped.

#include "test/cuda/device_or_skip.h"
#include "test/support/change_checks.h"

namespace psd::gradient_change_cuda_test {
namespace {

using testing::deviceOrSkip;

TEST_CASE("clipped and compensated gradients change weights on CUDA as a reference in double says") {
  const auto cuda = deviceOrSkip();
  for (size_t elements : {1, 3, 16, 257, 5003, 3'000'001}) testing::checkChanges(*cuda, elements);
}

TEST_CASE("gradients that a codec made are changed likewise on CUDA") {
  const auto cuda = deviceOrSkip();
  for (const char* name : {"fp16", "int8", "e3m0", "int4", "topk:fraction=0.1", "onebit"}) {
    const auto codec = makeCodec(name);
    PSD_REQUIRE_OK(codec);
    for (size_t elements : {17, 5003}) testing::checkChanges(*cuda, elements, codec->get());
  }
}

TEST_CASE("what a round combines to on CUDA has its norm, and is clipped as a reference in double says") {
  const auto cuda = deviceOrSkip();
  for (size_t elements : {1, 256, 5003, 3'000'001}) testing::checkCombinedChanges(*cuda, elements);
}

}  // namespace
}  // namespace psd::gradient_change_cuda_test
