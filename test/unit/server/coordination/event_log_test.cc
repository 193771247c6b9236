#include "server/coordination/event_log.h"

#include "test/support/catch.h"
#include "test/support/event_loop.h"

namespace psd::event_log_test {
namespace {

TEST_CASE("events are numbered, one line each, and the newest are kept") {
  const testing::TestLoop loop;  // on which the log's promises run
  EventLog log;
  log.add("joined", "rank 0\nof 2");
  log.add("lost", std::string(5000, 'x'));
  const auto events = log.after(0).events;
  REQUIRE(events.size() == 2);
  CHECK(events[0].number == 1);
  CHECK(events[0].kind == "joined");
  CHECK(events[0].text.find('\n') == std::string::npos);
  CHECK(events[1].text.size() <= EventLog::kTextBytesMax + 3);
  CHECK(events[0].time <= events[1].time);
  CHECK(log.after(1).events.size() == 1);
  CHECK(log.after(2).events.empty());
  for (size_t i = 0; i < 1000; i++) log.add("reload", "x");
  CHECK(log.after(0).events.size() == EventLog::kEventsMax);
  CHECK(log.after(0).events.back().number == 1002);
}

TEST_CASE("checkpoints displace no other events") {
  const testing::TestLoop loop;
  EventLog log;
  log.add("lost", "rank 0");
  for (size_t i = 0; i < 1000; i++) log.add("checkpoint", std::to_string(i));
  log.add("joined", "rank 0");
  const auto events = log.after(0).events;
  REQUIRE(events.size() == EventLog::kCheckpointsMax + 2);
  CHECK(events.front().kind == "lost");
  CHECK(events[1].number == 1002 - EventLog::kCheckpointsMax);
  CHECK(events.back().kind == "joined");
  CHECK(log.after(1000).events.size() == 2);
}

TEST_CASE("a caller that waits for the next event is notified") {
  testing::TestLoop loop;
  EventLog log;
  auto first = log.nextAfter(0), second = log.nextAfter(1);
  CHECK_FALSE(loop.resolved(first));
  log.add("joined", "a");
  CHECK(loop.wait(kj::mv(first)).events.size() == 1);
  CHECK_FALSE(loop.resolved(second));
  log.add("left", "b");
  CHECK(loop.wait(kj::mv(second)).events.front().text == "b");
  CHECK(loop.wait(log.nextAfter(0)).events.size() == 2);
}

}  // namespace
}  // namespace psd::event_log_test
