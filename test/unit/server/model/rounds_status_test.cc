#include "server/model/rounds_status.h"

#include <vector>

#include "test/support/catch.h"

namespace psd::rounds_status_test {
namespace {

using Ranks = std::vector<uint32_t>;

TEST_CASE("the rank of a trainer that died and rejoined in one round is listed once") {
  RoundsReport report;
  report.closed = 4;
  report.last.contributors = {Rank{3}, Rank{0}, Rank{0}};
  report.last.missing = {Rank{2}, Rank{0}, Rank{2}};
  report.last.late = {Rank{0}, Rank{0}};
  report.here = {Rank{1}, Rank{0}, Rank{1}};
  const RoundsStatus status = roundsStatusOf(report, "fc*", "sync");
  CHECK(status.group == "fc*");
  CHECK(status.policy == "sync");
  CHECK(status.closed == 4);
  CHECK(status.in == Ranks{0, 3});
  CHECK(status.missing == Ranks{2});
  CHECK(status.late == Ranks{0});
  CHECK(status.contributed == Ranks{0, 1});
}

}  // namespace
}  // namespace psd::rounds_status_test
