#include "common/log/log_limit.h"
#include "test/support/catch.h"

namespace psd {
namespace {

using namespace std::chrono_literals;
using Clock = LogLimit::Clock;

const Clock::time_point kStart{};

/// The number of lines written of `attempts` lines of `event` by the peer.
uint32_t written(LogLimit& limit, uint32_t attempts, const std::string& peer, Clock::time_point now,
                 const std::string& event = "login_refused") {
  uint32_t lines = 0;
  for (uint32_t i = 0; i < attempts; i++) lines += limit.admit(event, peer, now) ? 1 : 0;
  return lines;
}

TEST_CASE("a host that connects from many ports writes a few lines, and the rest is counted") {
  LogLimit limit;
  uint32_t lines = 0;
  for (int port = 1; port <= 1000; port++) {
    lines += written(limit, 1, "10.0.0.7:" + std::to_string(port) + " (psd-trainer)", kStart);
  }
  CHECK(lines == LogLimit::kLinesPerHost);
  CHECK(limit.suppressed() == 1000 - LogLimit::kLinesPerHost);
  CHECK(written(limit, 1, "10.0.0.8:1", kStart) == 1);
  CHECK(written(limit, 1, "10.0.0.7:1", kStart, "handshake_refused") == 1);
  REQUIRE(limit.nextDue() == kStart + LogLimit::kWindowMin);
  CHECK(limit.due(kStart + 9s).empty());
  CHECK(limit.due(kStart + 10s) ==
        std::vector<std::string>{"990 more lines of event 'login_refused' in 10.0 s were left out"});
  CHECK_FALSE(limit.nextDue());
  CHECK(written(limit, 1000, "10.0.0.7:4711", kStart + 11s) == LogLimit::kLinesPerHost);
}

TEST_CASE("many hosts together write a bounded number of lines") {
  LogLimit limit;
  uint32_t lines = 0;
  for (int host = 0; host < 1000; host++) lines += written(limit, 3, std::to_string(host) + ":1", kStart);
  CHECK(lines == LogLimit::kLines);
}

TEST_CASE("an attack of a day writes some thousand lines") {
  LogLimit limit;
  uint32_t lines = 0;
  for (auto now = kStart; now < kStart + 24h; now += 1s) {
    lines += static_cast<uint32_t>(limit.due(now).size());
    for (int host = 0; host < 50; host++) lines += written(limit, 1, std::to_string(host) + ":1", now);
  }
  CHECK(lines < 6000);
}

TEST_CASE("after a quiet window a peer's lines are written again, and windows are short again") {
  LogLimit limit;
  constexpr uint32_t kMost = LogLimit::kLinesPerHost;
  written(limit, kMost + 1, "a:1", kStart);
  limit.due(kStart + 10s);  // the next one lasts 20 s
  CHECK(written(limit, kMost, "a:1", kStart + 12s) == kMost);
  CHECK(written(limit, kMost + 1, "a:1", kStart + 31s) == kMost);
  CHECK(limit.nextDue() == kStart + 41s);
}

}  // namespace
}  // namespace psd
