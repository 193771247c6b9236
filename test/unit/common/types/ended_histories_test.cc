#include "common/types/ended_histories.h"

#include "test/support/catch.h"

namespace psd::types_ended_histories_test {
namespace {

TEST_CASE("a history that has ended is refused until every daemon has it again") {
  EndedHistories histories;
  CHECK(histories.admits(1, 0, 3));
  histories.add(1);
  CHECK(histories.admits(2, 0, 3));
  CHECK_FALSE(histories.admits(1, 1, 3));
  CHECK_FALSE(histories.admits(1, 1, 3));  // the same daemon again
  CHECK_FALSE(histories.admits(1, 2, 3));
  CHECK(histories.admits(2, 0, 3));  // the refusals before do not count
  for (const size_t daemon : {1, 2, 1}) CHECK_FALSE(histories.admits(1, daemon, 3));
  CHECK(histories.admits(1, 0, 3));
  CHECK_FALSE(histories.contains(1));
}

TEST_CASE("a single daemon may return to a history") {
  EndedHistories histories;
  histories.add(1);
  CHECK(histories.contains(1));
  CHECK(histories.admits(1, 0, 1));
}

}  // namespace
}  // namespace psd::types_ended_histories_test
