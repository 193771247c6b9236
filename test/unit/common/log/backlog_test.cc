#include "common/log/log_backlog.h"
#include "test/support/catch.h"

namespace psd {
namespace {

namespace level = spdlog::level;
constexpr size_t kLine = 1 << 10;

uint32_t fill(LogBacklog& backlog, level::level_enum severity) {
  uint32_t lines = 0;
  while (backlog.push(severity, std::string(kLine, 'x'))) lines++;
  return lines;
}

TEST_CASE("the backlog of a log drops information first and errors last, and counts them") {
  LogBacklog backlog;
  constexpr uint32_t kAll = LogBacklog::kBytesMax / kLine;
  CHECK(fill(backlog, level::info) == kAll / 2);
  CHECK(fill(backlog, level::debug) == 0);
  CHECK(fill(backlog, level::warn) == kAll / 4);
  CHECK(fill(backlog, level::err) == kAll / 4);
  CHECK(fill(backlog, level::critical) == 0);
  CHECK(backlog.takeDropped() == 5);
  CHECK(backlog.takeDropped() == 0);
}

TEST_CASE(
    "lines of the backlog come whole and in order, and count against its capacity until they are written") {
  LogBacklog backlog;
  for (const char* line : {"one\n", "two\n", "three\n"}) REQUIRE(backlog.push(level::info, line));
  const LogBacklog::Batch two = backlog.take(8);
  CHECK(two.text == "one\ntwo\n");
  CHECK(two.lines == 2);
  CHECK(backlog.take(1).text == "three\n");  // at least one
  CHECK(backlog.empty());
  backlog.written();

  fill(backlog, level::info);
  static_cast<void>(backlog.take(64 * kLine));
  CHECK(fill(backlog, level::info) == 0);
  backlog.written();
  CHECK(fill(backlog, level::info) == 64);
}

}  // namespace
}  // namespace psd
