#include "common/text/quantity.h"

#include <chrono>
#include <limits>
#include <utility>

#include "test/support/catch.h"

namespace psd::quantity_test {
namespace {

TEST_CASE("bytes are printed in a human-readable unit") {
  CHECK(bytesText(0) == "0 B");
  CHECK(bytesText(1023) == "1023 B");
  CHECK(bytesText(1536) == "1.5 KiB");
  CHECK(bytesText(3ull << 40) == "3.0 TiB");
}

TEST_CASE("durations are printed in a human-readable unit") {
  const std::pair<double, const char*> durations[] = {
      {0, "0 s"},           {12e-6, "12 µs"},     {0.00099999, "1.0 ms"},
      {0.0125, "12.5 ms"},  {0.12, "120 ms"},     {0.99996, "1.0 s"},
      {3.21, "3.2 s"},      {59.96, "1 min 0 s"}, {184, "3 min 4 s"},
      {7800, "2 h 10 min"}, {-1, "0 s"},          {3599.7, "1 h 0 min"},
  };
  for (const auto& [seconds, text] : durations) CHECK(durationText(seconds) == text);
  CHECK(durationText(std::numeric_limits<double>::quiet_NaN()) == "0 s");
  CHECK(durationText(std::chrono::milliseconds(2000)) == "2.0 s");
  CHECK(durationText(std::chrono::minutes(1)) == "1 min 0 s");
}

}  // namespace
}  // namespace psd::quantity_test
