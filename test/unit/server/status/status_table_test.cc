#include "server/status/status_table.h"

#include <algorithm>

#include "server/status/daemons_table.h"
#include "test/support/catch.h"
#include "test/support/sample_status.h"

namespace psd::status_table_test {
namespace {

using Catch::Matchers::Contains;
using testing::sampleStatus;

TEST_CASE("the complete table of a status") {
  CHECK(statusTable(sampleStatus()) ==
        "psd 0.1.0  serving  pid 4711 on node-3, up 1 h 2 min, 18.5 MiB resident\n"
        "listening  tcp://node-3:5500, unix:///run/psd.sock\n"
        "moved to   tcp://node-5:5500,tcp://node-6:5500\n"
        "policy     sync\n"
        "optimizer  sgd lr=0.03\n"
        "model      mnist_cnn, 1199882 parameters in 8 tensors\n"
        "  shard  elements  version  device\n"
        "  0        600000      190     cpu\n"
        "  1        599904      189     cpu\n"
        "trainers   1 joined of 1 to 2, 3 lost\n"
        "  rank      process  step  staleness     pulled  pushed    last seen  lease left  waits for         "
        "            "
        "codec\n"
        "  0     8243@node-4   107          2  489.8 MiB  1000 B  12.0 ms ago      10.0 s       push  "
        "topk:fraction=0.01 66.1x\n"
        "waiting    rank 0 waits in round 826 (sync) for rank 1 (3.2 s)\n"
        "durability log in saved, last checkpoint 1 min 1 s ago (4.6 MiB, 250 ms, pushes paused for 500 µs)\n"
        "held       in_flight_bytes 1.0 MiB of 1.0 GiB\n"
        "traffic    0 B pulled, 0 B pushed, 189 gradients (12.3/s) in 758 updates, 3 connections open\n"
        "staleness  median 1, 99 % ≤ 17, max 17\n");
}

TEST_CASE("the table of a daemon that has just started") {
  DaemonStatus status;
  status.state = "waiting for a model";
  const std::string table = statusTable(status);
  CHECK_THAT(table, Contains("model      none yet; the first trainer defines it\n"
                             "trainers   0 of 0 joined, 0 lost\n"
                             "traffic    "));
  for (const char* absent : {"durability", "held", "staleness", "refused", "waiting  "}) {
    CHECK_THAT(table, !Contains(absent));
  }
}

TEST_CASE("the table shows a broken log and failing checkpoints, and nothing of intact ones") {
  DaemonStatus status;
  status.durability = {.type = "log", .path = "saved", .log = LogStatus{.lost = 17}};
  CHECK_THAT(statusTable(status), Contains("durability log in saved, no checkpoint yet\ntraffic "));
  status.durability.log->error = "'saved/log-1': No space left on device";
  status.durability.checkpointFailures = 2;
  status.durability.error = "no room";
  CHECK_THAT(
      statusTable(status),
      Contains("durability log in saved, no checkpoint yet, 2 failed\n"
               "           NOT SAVED: no room\n"
               "           LOG BROKEN: 'saved/log-1': No space left on device, 17 updates not written\n"));
}

TEST_CASE("the table shows what the disk holds, and which lines the log lacks") {
  DaemonStatus status;
  status.durability = {.type = "log", .path = "saved", .checkpointDiskBytes = 3 << 20, .log = LogStatus()};
  status.durability.log->diskBytes = 5 << 20;
  status.logLinesDropped = 12;
  status.logLinesSuppressed = 3;
  const std::string table = statusTable(status);
  CHECK_THAT(table, Contains("           5.0 MiB of log and 3.0 MiB of checkpoints on disk\n"));
  CHECK_THAT(table, Contains("log lines  12 DROPPED, 3 suppressed\n"));
}

TEST_CASE("the table shows a bridge") {
  DaemonStatus status;
  CHECK_THAT(statusTable(status), !Contains("bridge"));
  status.bridge = BridgeStatus{
      .host = "node-4", .pid = 8243, .differences = 12, .lastSeenSeconds = 0.26, .connected = true};
  CHECK_THAT(statusTable(status),
             Contains("\nbridge     process 8243 on node-4, differences added: 12, last seen 0.3 s ago\n"));
  status.bridge->connected = false;
  CHECK_THAT(statusTable(status),
             Contains("\nbridge     process 8243 on node-4, differences added: 12, not connected\n"));
}

TEST_CASE("the table shows who waits, in which group and for whom") {
  DaemonStatus status = sampleStatus();
  status.waiting.front().ranks = {0, 2};
  status.waiting.front().joins = 2;
  CHECK_THAT(statusTable(status), Contains("ranks 0, 2 wait in round 826 (sync) for rank 1 (3.2 s); "
                                           "2 more trainers to join\n"));
  status.shards.back().group = "fc*";
  CHECK_THAT(statusTable(status), Contains("ranks 0, 2 wait in round 826 (sync of others) for rank 1"));
}

TEST_CASE("the table has a line for each non-empty histogram, and names faults that occurred") {
  DaemonMetrics counters;
  for (const double seconds : {0.0008, 0.0008, 0.015}) counters.applySeconds.record(seconds);
  counters.logSyncSeconds.record(75);
  counters.refusedSlices.add(4);
  counters.connectionsDropped.add(1);
  counters.repeatedSlices.add(9);  // not a fault
  counters.latePushes.add(2);
  DaemonStatus status;
  status.counters = MetricValues<Counter>(counters);
  status.histograms = MetricValues<Histogram>(counters);
  CHECK_THAT(statusTable(status), Contains("gradients  2 dropped as late, 0 as stale\n"
                                           "apply      median 875 µs, 99 % ≤ 15.0 ms, max 15.0 ms\n"
                                           "log sync   median 1 min 3 s, 99 % ≤ 1 min 15 s, max 1 min 15 s\n"
                                           "refused    connections_dropped 1 refused_slices 4\n"));
}

TEST_CASE("the table has the tokens per second that trainers report, and those of all that are connected") {
  DaemonStatus status = sampleStatus();
  CHECK_THAT(statusTable(status), !Contains("tokens/s"));
  status.trainers.resize(1);
  status.trainers.front().connected = true;
  status.trainers.front().reports = {{"tokens_per_second", 18230.4}};
  status.trainers.push_back(status.trainers.front());
  CHECK_THAT(statusTable(status), Contains("lost; 36461 tokens/s\n"));
  status.trainers.back().connected = false;  // its last report is outdated
  status.trainers.front().reports.front().value = 1e300;
  const std::string text = statusTable(status);
  CHECK_THAT(text, Contains("lost; 1e+300 tokens/s\n"));
  CHECK_THAT(text, Contains(" tokens/s\n"));
  CHECK_THAT(text, Contains("  1e+300\n"));
  status.trainers.front().reports.front().value = {};
  CHECK_THAT(statusTable(status), Contains("  not finite\n"));
}

TEST_CASE("rounds are shown if trainers can be left out, and always under diloco") {
  DaemonStatus status = sampleStatus();
  status.rounds = {{.group = "others", .policy = "sync", .closed = 5, .in = {0, 1}}};
  CHECK(statusTable(status).find("rounds ") == std::string::npos);
  RoundsStatus& rounds = status.rounds.front();
  rounds.policy = "diloco";
  rounds.openSeconds = 2;
  CHECK_THAT(statusTable(status), Contains("rounds     5 closed (diloco); last: ranks 0, 1 in 2.0 s\n"));
  rounds.policy = "sync";
  rounds.openSeconds = 1.25;
  rounds.leftOut = {{.rank = 2, .rounds = 3, .running = 1}};
  CHECK(statusTable(status).find("rounds     5 closed (sync); last: ranks 0, 1 in 1.2 s; "
                                 "left out: rank 2 of 3 round(s)\n") != std::string::npos);
  DaemonStatus two = status;
  two.rounds.push_back(rounds);
  two.rounds.back().group = "fragment 1";
  CHECK(statusTable(two).find("rounds     5 closed (sync of fragment 1); last") != std::string::npos);
  rounds = {.group = "others",
            .policy = "diloco",
            .closed = 9,
            .in = {0, 1},
            .missing = {2},
            .openSeconds = 4,
            .graceSeconds = 2,
            .contributed = {1},
            .graceLeftSeconds = 0.5,
            .leftOut = {{.rank = 2, .rounds = 12, .running = 12}}};
  CHECK(statusTable(status).find("rounds     9 closed (diloco); last: ranks 0, 1 in 4.0 s, grace 2.0 s; "
                                 "left out: rank 2 of 12 round(s), the last 12 in a row; open round: "
                                 "ranks 1, grace left 500 ms\n") != std::string::npos);
}

TEST_CASE("each process of a replica set has a row, with what it waits for, and why it is unreachable") {
  DaemonRows rows;
  rows.daemons = {{.partition = 0,
                   .address = "tcp://a:1",
                   .answers = true,
                   .state = "serving",
                   .role = "primary",
                   .daemon = "07",
                   .term = 3,
                   .standbyInSync = true,
                   .lagBytes = 2048},
                  {.partition = 0,
                   .address = "tcp://b:1",
                   .answers = true,
                   .state = "serving",
                   .role = "standby",
                   .daemon = "09",
                   .term = 3},
                  {.partition = 1,
                   .address = "tcp://c:1",
                   .polled = true,
                   .why = "no way to tcp://c:1: refused",
                   .role = "primary",
                   .term = 1},
                  {.partition = 1,
                   .address = "tcp://d:1",
                   .answers = true,
                   .state = "waiting",
                   .role = "syncing",
                   .daemon = "11",
                   .term = 1,
                   .waits = "for\nits primary",
                   .lagBytes = 1},
                  {.partition = 2, .address = "tcp://e:1", .why = "it is being asked"}};
  CHECK(daemonsTable(rows) ==
        "  daemon     partition     role  term        state                    standby\n"
        "  tcp://a:1          0  primary     3      serving    in sync, 2.0 KiB behind\n"
        "  tcp://b:1          0  standby     3      serving      in sync, 0 B to apply\n"
        "  tcp://c:1          1  primary     1  unreachable                          -\n"
        "  tcp://d:1          1  syncing     1      waiting  not in sync, 1 B to apply\n"
        "  tcp://e:1          2        -     0            ?                          -\n"
        "           UNREACHABLE: no way to tcp://c:1: refused\n"
        "           WAITS: tcp://d:1: for?its primary\n"
        "           tcp://e:1: it is being asked\n");
}

TEST_CASE("any text or number that a daemon sends stays on one line") {
  DaemonStatus status = sampleStatus();
  const auto lines = [](const std::string& text) { return std::count(text.begin(), text.end(), '\n'); };
  const auto before = lines(statusTable(status));
  status.host = status.state = status.policy = "a\nb\x1b[2J\xff";
  status.shards.front().device = status.trainers.front().host = status.waiting.front().what = "c\nd";
  status.uptimeSeconds = 1e300;
  status.trainers.front().leaseLeftSeconds = -1e300;
  status.trainers.front().pushedBytes = UINT64_MAX;
  for (const Metric<Histogram>* metric : daemonMetrics().all<Histogram>()) {
    status.histograms[*metric] = {
        .count = 1, .sum = -1, .most = 1e308, .buckets = {{-1., 1}, {std::nullopt, 1}}};
  }
  const std::string table = statusTable(status);
  CHECK(lines(table) == before + 4);  // the other histograms
  CHECK(table.find('\x1b') == std::string::npos);
}

}  // namespace
}  // namespace psd::status_table_test
