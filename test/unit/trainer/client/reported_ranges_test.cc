#include "trainer/client/reported_ranges.h"

#include <map>

#include "test/support/catch.h"

namespace psd::client_reported_ranges_test {

using Ends = std::map<uint64_t, uint64_t>;

TEST_CASE("adjacent ranges are merged, in any order of reports") {
  ReportedRanges ranges;
  CHECK(ranges.add(10, 5));
  CHECK(ranges.add(20, 5));
  CHECK(ranges.add(0, 0));
  CHECK(ranges.ends() == Ends{{10, 15}, {20, 25}});
  CHECK(ranges.add(15, 5));
  CHECK(ranges.ends() == Ends{{10, 25}});
  CHECK(ranges.add(0, 10));
  CHECK(ranges.ends() == Ends{{0, 25}});
}

TEST_CASE("an element that is reported twice is an error, and changes nothing") {
  ReportedRanges ranges;
  CHECK(ranges.add(10, 10));
  for (const auto& [begin, count] : Ends{{10, 10}, {5, 6}, {19, 1}, {12, 2}, {0, 100}}) {
    CHECK_FALSE(ranges.add(begin, count));
  }
  CHECK(ranges.ends() == Ends{{10, 20}});
  CHECK(ranges.add(9, 1));
  CHECK(ranges.add(20, 1));
}

}  // namespace psd::client_reported_ranges_test
