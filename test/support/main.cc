#define CATCH_CONFIG_RUNNER  // Catch2 2: its implementation in this unit, without its main
#include "test/support/catch.h"

/// Catch2's own, but for one thing: it answers with the number of assertions that failed, and kSkippedExit of
/// them would look like a test that was skipped.
int main(int argc, char** argv) {
  const int failed = Catch::Session().run(argc, argv);
  return failed == psd::testing::kSkippedExit ? 1 : failed;
}
