#include "server/loop/background.h"

#include <string>

#include "test/support/catch.h"
#include "test/support/event_loop.h"

namespace psd::background_test {
namespace {

using testing::TestLoop;

TEST_CASE("work runs on its own thread, and its result is delivered to the loop") {
  TestLoop loop;
  Background background;
  const auto here = std::this_thread::get_id();
  CHECK(loop.wait(background.run<bool>([here] { return std::this_thread::get_id() != here; })));
  CHECK(loop.wait(background.run<std::string>([] { return std::string("made"); })) == "made");
}

TEST_CASE("threads that have ended are released") {
  TestLoop loop;
  Background background;
  for (int i = 0; i < 100; i++) {
    CHECK(loop.wait(background.run<int>([i] { return i; })) == i);
    CHECK(background.threads() == 1);
  }
}

TEST_CASE("work without a waiting caller is finished all the same") {
  TestLoop loop;
  std::atomic<bool> done = false;
  {
    Background background;
    auto promise = background.run<int>([&done] {
      done = true;
      return 1;
    });
  }
  CHECK(done);
}

}  // namespace
}  // namespace psd::background_test
