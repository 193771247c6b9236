#include "server/pull/slice_encoder.h"

#include "test/support/catch.h"

namespace psd::slice_encoder_test {
namespace {

TEST_CASE("SliceEncoder: copies share one pool of buffers") {
  SliceEncoder one, other = one;
  const auto codec = makeCodec("bf16");
  PSD_REQUIRE_OK(codec);
  const std::vector<float> values(1000, 1.5f);
  const ReadView view{values, std::make_shared<int>()};
  const std::byte* place = nullptr;
  for (SliceEncoder* encoder : {&one, &other, &one}) {
    const auto encoded = encoder->encode(**codec, view);
    PSD_REQUIRE_OK(encoded);
    if (place != nullptr) CHECK(encoded->bytes.data() == place);
    place = encoded->bytes.data();
  }
}

}  // namespace
}  // namespace psd::slice_encoder_test
