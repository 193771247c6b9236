// Test cases that end in different ways, each run alone; CMakeLists.txt states the expected exit status.

#include "test/support/catch.h"

namespace {

void fail(int times) {
  for (int i = 0; i < times; ++i) CHECK(i < 0);
}

}  // namespace

TEST_CASE("4 failures") { fail(psd::testing::kSkippedExit); }

TEST_CASE("5 failures") { fail(psd::testing::kSkippedExit + 1); }

TEST_CASE("no failure") { CHECK(psd::testing::kSkippedExit != 0); }

TEST_CASE("a skip") { psd::testing::skipTest("as asked"); }
