#define CATCH_CONFIG_RUNNER  // Catch2 2: its implementation in this unit, without its main
#include "test/support/catch.h"

/// Like Catch2's own main with one difference: that returns the number of failed assertions, and kSkippedExit
/// of them would look like a skipped test.
int main(int argc, char** argv) {
  const int failed = Catch::Session().run(argc, argv);
  return failed == psd::testing::kSkippedExit ? 1 : failed;
}
