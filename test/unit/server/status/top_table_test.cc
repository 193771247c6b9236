#include "server/status/top_table.h"

#include <algorithm>
#include <cmath>

#include "test/support/catch.h"

namespace psd::top_table_test {
namespace {

DaemonStatus statusAt(double uptime, uint64_t gradients, uint64_t step) {
  DaemonStatus status;
  status.version = "1";
  status.pid = 7;
  status.uptimeSeconds = uptime;
  status.state = "serving";
  status.worldSize = 2;
  status.counters[daemonMetrics().gradients] = gradients;
  status.trainers.push_back({.rank = 1,
                             .host = "a",
                             .pid = 3,
                             .process = "x",
                             .step = step,
                             .batch = 10,
                             .pushedBytes = step << 20,
                             .connected = true,
                             .reports = {{"loss", 0.25}}});
  return status;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_CASE("rates cover the time between two samples of the same daemon") {
  const std::string text = topTable(statusAt(10, 100, 50), statusAt(12, 300, 60));
  CAPTURE(text);
  CHECK(has(text, "rates      100 gradients/s, 50 samples/s"));
  CHECK(has(text, "5.0 MiB/s"));
  CHECK(has(text, "0.25"));
  CHECK(has(text, "1 of 2 joined"));
}

TEST_CASE("tokens per second are those that trainers report, and their sum") {
  DaemonStatus now = statusAt(12, 300, 60);
  CHECK_FALSE(has(topTable(statusAt(10, 100, 50), now), "tokens/s"));
  now.trainers.front().reports.push_back({"tokens_per_second", 18230.4});
  now.trainers.push_back({.rank = 2, .connected = true, .reports = {{"tokens_per_second", 1000}}});
  now.trainers.push_back({.rank = 3, .connected = true});
  const std::string text = topTable(statusAt(10, 100, 50), now);
  CAPTURE(text);
  CHECK(has(text, "50 samples/s, 19230 tokens/s, "));
  CHECK(has(text, " tokens/s\n"));
  CHECK(has(text, " 18230\n"));
  CHECK(has(text, " -\n"));
}

TEST_CASE("after a sample of another daemon rates are since the start") {
  DaemonStatus other = statusAt(1000, 100'000, 50);
  other.pid = 8;
  CHECK(has(topTable(other, statusAt(2, 300, 60)), "rates      150 gradients/s, 0 samples/s"));
  CHECK(has(topTable(DaemonStatus(), statusAt(2, 300, 60)), "rates      150 gradients/s"));
}

TEST_CASE("the table fits a terminal, and tells how many trainers are left out") {
  DaemonStatus now = statusAt(12, 300, 60);
  now.trainers.clear();
  for (uint32_t rank = 0; rank < 30; rank++) {
    now.trainers.push_back({.rank = rank,
                            .host = "a-host-with-a-long-name",
                            .pid = 4194304,
                            .process = "x",
                            .step = 100 - rank,
                            .staleness = rank,
                            .connected = true});
  }
  const std::string text =
      topTable(statusAt(10, 100, 50), now, {.sort = "staleness", .rows = 23, .columns = 80});
  CAPTURE(text);
  CHECK(std::ranges::count(text, '\n') == 23);
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
    CHECK(end - begin <= 80);
  CHECK(text.starts_with("psd 1 "));
  CHECK(has(text, "  rank  "));
  CHECK(text.find("\n  29 ") < text.find("\n  28 "));
  CHECK(has(text, "\n  12 "));
  CHECK_FALSE(has(text, "\n  11 "));
  CHECK(has(text, "\n  12 more trainers\n"));
  CHECK_FALSE(has(topTable(DaemonStatus(), now), "more trainers"));
  const std::string tiny = topTable(DaemonStatus(), now, {.rows = 1, .columns = 5});
  CHECK(has(tiny, "psd 1\n"));
}

TEST_CASE("a waiting trainer is shown with its group if there are several") {
  DaemonStatus status = statusAt(1, 1, 1);
  status.waiting = {
      {.group = "others", .policy = "sync", .what = "round 3", .ranks = {0}, .awaited = {{.rank = 1}}}};
  CHECK(has(topTable(status, status), "waiting    round 3: ranks 0 for 1 ("));
  status.shards = {{.group = "fc*"}, {.group = "others"}};
  CHECK(has(topTable(status, status), "waiting    round 3 of others: ranks 0 for 1 ("));
}

TEST_CASE("a daemon without trainers, and one that reports nonsense, make a table too") {
  DaemonStatus status;
  CHECK(has(topTable(status, status), "no trainers"));
  status = statusAt(std::nan(""), 5, 6);
  status.trainers[0].host = "evil\nhost";
  CHECK_FALSE(has(topTable(statusAt(1, 100, 50), status), "evil\nhost"));
}

TEST_CASE("a daemon's role in its replica set is shown, if it has one") {
  DaemonStatus status = statusAt(12, 300, 60);
  CHECK_FALSE(has(topTable(DaemonStatus(), status), "group "));
  status.replicaSet = ReplicaSetStatus{.role = "primary",
                                       .term = 3,
                                       .standby = "07",
                                       .follower = "07",
                                       .lagBytes = 2048,
                                       .engine = "no answer"};
  const std::string primary = topTable(DaemonStatus(), status);
  CAPTURE(primary);
  CHECK(has(primary, "\ngroup      primary of term 3, standby 07, 2.0 KiB behind\n"));
  CHECK(has(primary, "ENGINE: no answer\n"));
  status.replicaSet = ReplicaSetStatus{
      .role = "standby", .term = 3, .primary = "09", .lastContactSeconds = 0.25, .waits = "w"};
  const std::string standby = topTable(DaemonStatus(), status);
  CAPTURE(standby);
  CHECK(has(standby, "\ngroup      standby of term 3, primary 09, last contact 250 ms ago, 0 B to apply\n"));
  CHECK(has(standby, "WAITS: w\n"));
}

}  // namespace
}  // namespace psd::top_table_test
