#include "common/cli/setting.h"

#include <string>

#include "test/support/catch.h"

namespace psd::cli_setting_test {

TEST_CASE("seconds accept fractions and check bounds") {
  CHECK(*parseSeconds({"--t", "0.25"}, 10) == 0.25);
  CHECK(*parseSeconds({"--t", "10"}, 10) == 10);
  for (const std::string text : {"0", "-1", "11", "nan", "inf", "", "1s"}) {
    const auto parsed = parseSeconds({"--t", text}, 10);
    REQUIRE_FALSE(parsed.ok());
    CHECK(parsed.message() == "--t: '" + text + "' is not a number of seconds above 0 and up to 10");
  }
}

TEST_CASE("integers reject fractions and check their range") {
  CHECK(*parseInteger({"--n", "7"}, 1, 7) == 7);
  CHECK(*parseInteger({"--n", "+7"}, 1, 7) == 7);
  CHECK(*parseInteger({"--n", "18446744073709551615"}, 0, UINT64_MAX) == UINT64_MAX);
  for (const std::string text : {"0", "+8", "7.0", "+-7", " 7", "", "18446744073709551616"}) {
    const auto parsed = parseInteger({"--n", text}, 1, 7);
    REQUIRE_FALSE(parsed.ok());
    CHECK(parsed.message() == "--n: '" + text + "' is not a whole number from 1 to 7");
  }
}

TEST_CASE("numbers accept fractions and check bounds") {
  CHECK(*parseNumber({"--x", "1.05"}, 0, 2) == 1.05);
  CHECK(*parseNumber({"--x", "0"}, 0, 2) == 0);
  for (const std::string text : {"-0.1", "2.1", "nan", "inf", "", "1x"}) {
    const auto parsed = parseNumber({"--x", text}, 0, 2);
    REQUIRE_FALSE(parsed.ok());
    CHECK(parsed.message() == "--x: '" + text + "' is not a number from 0 to 2");
  }
}

TEST_CASE("bytes accept a unit") {
  CHECK(*parseBytes({"--b", "3K"}, 1, 1 << 20) == 3072);
  CHECK(*parseBytes({"--b", "17"}, 1, 1 << 20) == 17);
  for (const std::string text : {"0", "2M", "K", "1k", "-1", ""}) {
    const auto parsed = parseBytes({"--b", text}, 1, 1 << 20);
    REQUIRE_FALSE(parsed.ok());
    CHECK(parsed.message().find("--b: '" + text + "' is not a number of bytes from 1 to 1048576") == 0);
  }
}

}  // namespace psd::cli_setting_test
