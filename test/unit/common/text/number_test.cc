#include "common/text/number.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "test/support/catch.h"

namespace psd::number_test {

TEST_CASE("numbers are read as programs write them") {
  CHECK(toNumber<float>("0.5") == 0.5f);
  CHECK(toNumber<float>("+0.5") == 0.5f);
  CHECK(toNumber<float>("-.5") == -0.5f);
  CHECK(toNumber<float>("5.") == 5.f);
  CHECK(toNumber<float>("1E3") == 1000.f);
  CHECK(toNumber<double>("1.7976931348623157e308") == std::numeric_limits<double>::max());
  CHECK(toNumber<int64_t>("+7") == 7);
  CHECK(toNumber<int64_t>("-9223372036854775808") == INT64_MIN);
  CHECK(toNumber<uint64_t>("18446744073709551615") == UINT64_MAX);
}

TEST_CASE("a number too small for its type is rounded") {
  CHECK(toNumber<float>("1e-46") == 0.f);
  CHECK(toNumber<float>("4.9406564584124654e-324") == 0.f);
  CHECK(toNumber<float>("1e-45") == std::numeric_limits<float>::denorm_min());
  CHECK(toNumber<float>("1e-40") == 1e-40f);
  CHECK(toNumber<double>("1e-400") == 0.0);
  const auto negative = toNumber<float>("-1e-99999999999999999999");
  REQUIRE(negative == 0.f);
  CHECK(std::signbit(*negative));
}

TEST_CASE("text that is not a number, or too large for the type, is rejected") {
  for (const std::string text : {"", " 1", "1 ", "+", "-", "+-1", "++1", "1_000", "0x10", "1e", "nan", "inf",
                                 "-inf", "infinity", "1e39", "-1e39", "1e99999999999999999999", "1,5"}) {
    INFO(text);
    CHECK_FALSE(toNumber<float>(text));
  }
  CHECK_FALSE(toNumber<double>("1e309"));
  CHECK_FALSE(toNumber<int64_t>("9223372036854775808"));
  CHECK_FALSE(toNumber<int64_t>("1.0"));
  CHECK_FALSE(toNumber<uint64_t>("-1"));
  CHECK_FALSE(toNumber<uint32_t>("4294967296"));
}

}  // namespace psd::number_test
