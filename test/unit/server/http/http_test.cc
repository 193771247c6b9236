// The parts of the HTTP side that need no socket: the history, the exposition, the difference of two
// documents.

#include <cmath>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <kj/compat/http.h>
#include <nlohmann/json.hpp>

#include "common/http/host_names.h"
#include "server/http/exposition.h"
#include "server/http/history.h"
#include "server/http/live_feed.h"
#include "server/http/watchers.h"
#include "test/support/catch.h"
#include "test/support/event_loop.h"

namespace psd::http_test {
namespace {

using Json = nlohmann::ordered_json;

std::shared_ptr<const void> anyRoom(uint64_t bytes) { return std::make_shared<const uint64_t>(bytes); }

DaemonStatus statusAfter(uint64_t gradients, uint64_t step) {
  DaemonStatus status;
  status.counters[daemonMetrics().gradients] = gradients;
  status.trainers.push_back({.rank = 1, .process = "a", .step = step, .batch = 32});
  status.residentBytes = 1000;
  return status;
}

size_t seriesNumber(std::string_view name) {
  for (size_t i = 0; i < History::kSeries.size(); i++) {
    if (History::kSeries[i] == name) return i;
  }
  FAIL("no series " << name);
  return 0;
}

TEST_CASE("a history's point has the rates since the previous sample") {
  History history;
  history.add(100, statusAfter(10, 5));
  CHECK_FALSE(history.newest());
  history.add(102, statusAfter(30, 9));
  REQUIRE(history.newest());
  const History::Values& values = history.newest()->values;
  CHECK(values[seriesNumber("gradients")] == 10);
  CHECK(values[seriesNumber("samples")] == 64);
  CHECK(values[seriesNumber("resident_bytes")] == 1000);
  CHECK(std::isnan(values[seriesNumber("staleness_median")]));
  CHECK(std::isnan(values[seriesNumber("learning_rate")]));
  DaemonStatus trains = statusAfter(40, 10);
  trains.learningRates = {{"fc*", 0.25}, {"others", 0.5}};
  history.add(103, trains);
  CHECK(history.newest()->values[seriesNumber("learning_rate")] == 0.5);
}

TEST_CASE("a history drops the oldest second, and keeps the means of minutes for a day") {
  History history;
  const size_t seconds = (History::kMinutes + 3) * History::kPerMinute;
  for (size_t i = 0; i <= seconds; i++) history.add(static_cast<double>(i), statusAfter(i * 4, i));
  const Json json = Json::parse(history.json("{\"3\":{}}"));
  CHECK(json["reports"].contains("3"));
  CHECK(json["series"].size() == History::kSeries.size());
  REQUIRE(json["seconds"].size() == History::kSeconds);
  REQUIRE(json["minutes"].size() == History::kMinutes);
  CHECK(json["seconds"].back()[0] == static_cast<double>(seconds));
  CHECK(json["seconds"].front()[0] == static_cast<double>(seconds - History::kSeconds + 1));
  CHECK(json["minutes"].back()[1 + seriesNumber("gradients")] == 4);
  CHECK(json["minutes"].back()[1 + seriesNumber("staleness_99")].is_null());
}

TEST_CASE("a merge patch makes the next document from the previous one") {
  const Json before = {{"a", 1}, {"b", {{"c", 1}, {"d", 2}}}, {"list", {1, 2}}, {"gone", 3}};
  const Json next = {{"a", 1}, {"b", {{"c", 1}, {"d", 5}}}, {"list", {1}}, {"new", "x"}};
  const Json patch = mergePatch(before, next);
  CHECK(patch == Json{{"gone", nullptr}, {"b", {{"d", 5}}}, {"list", {1}}, {"new", "x"}});
  Json patched = before;
  patched.merge_patch(patch);
  CHECK(patched == next);
  CHECK(mergePatch(next, next) == Json::object());
}

TEST_CASE("a client with the previous document receives the difference, all others the whole") {
  testing::TestLoop loop;
  LiveFeed feed(anyRoom);
  auto first = feed.next(0);
  feed.tick({{"a", 1}, {"b", 2}});
  const auto whole = loop.wait(kj::mv(first));
  CHECK(whole.tick == 1);
  CHECK(whole.text->starts_with("event: whole\nid: 1\ndata: {\"a\":1,\"b\":2}\n\n"));
  auto follows = feed.next(whole.tick), comes = feed.next(0), follows2 = feed.next(whole.tick);
  feed.tick({{"a", 1}, {"b", 3}});
  const auto delta = loop.wait(kj::mv(follows));
  CHECK(*delta.text == "event: delta\nid: 2\ndata: {\"b\":3}\n\n");
  CHECK(loop.wait(kj::mv(follows2)).text == delta.text);  // one for all
  CHECK(loop.wait(kj::mv(comes)).text->starts_with("event: whole\nid: 2"));
  auto late = feed.next(1);
  feed.tick({{"a", 1}, {"b", 4}});
  CHECK(loop.wait(kj::mv(late)).text->starts_with("event: whole\nid: 3"));
}

TEST_CASE("a tick without clients creates no difference, and the next one is whole") {
  testing::TestLoop loop;
  LiveFeed feed(anyRoom);
  feed.tick({{"a", 1}});
  auto waits = feed.next(1);
  feed.tick(nullptr);
  CHECK_FALSE(loop.resolved(waits));
  feed.tick({{"a", 2}});
  CHECK(loop.wait(kj::mv(waits)).text->starts_with("event: whole\nid: 3"));
}

TEST_CASE("a document without memory has no text, and a sent one is counted until it is released") {
  testing::TestLoop loop;
  uint64_t held = 0, most = 100;
  LiveFeed feed([&](uint64_t bytes) -> std::shared_ptr<const void> {
    if (held + bytes > most) return nullptr;
    held += bytes;
    return {&held, [&held, bytes](const void*) { held -= bytes; }};
  });
  auto first = feed.next(0);
  feed.tick({{"a", 1}});
  auto document = loop.wait(kj::mv(first));
  REQUIRE(document.text);
  CHECK(held == document.text->size());
  auto second = feed.next(document.tick);
  feed.tick({{"a", std::string(200, 'x')}});
  CHECK(loop.wait(kj::mv(second)).text == nullptr);
  document = {};
  CHECK(held == 0);
}

TEST_CASE("the oldest follower is evicted, readers before administrators") {
  testing::TestLoop loop;
  Watchers watchers(4);  // one of the connections is reserved for others
  REQUIRE(watchers.most() == 3);
  auto admin = watchers.enter(true), reader = watchers.enter(false), other = watchers.enter(false);
  auto comes = watchers.enter(false);
  REQUIRE(comes);
  CHECK(loop.resolved(reader->displaced));
  CHECK_FALSE(loop.resolved(other->displaced));
  auto second = watchers.enter(true), third = watchers.enter(true);
  CHECK(loop.resolved(other->displaced));
  CHECK(loop.resolved(comes->displaced));
  CHECK_FALSE(watchers.enter(false));
  auto fourth = watchers.enter(true);
  CHECK(loop.resolved(admin->displaced));
  second->held = nullptr;
  CHECK(watchers.enter(false));
}

TEST_CASE(
    "the exposition has log losses, disks, the certificate, learning rates, and the state of a standby") {
  DaemonStatus status;
  status.logLinesDropped = 3;
  status.logLinesSuppressed = 4;
  status.durability.checkpointDiskBytes = 5;
  status.durability.log = LogStatus{.diskBytes = 6};
  status.disks = {{.path = "/saved", .freeBytes = 8, .sizeBytes = 9}};
  status.certificateExpirySeconds = 10;
  status.learningRates = {{.group = "fc*", .rate = 0.25}};
  status.trainers.push_back({.rank = 2, .reportedStep = 7});
  status.replicaSet = ReplicaSetStatus{.role = "standby"};
  const std::string text = exposition(status, HttpMetrics(), {});
  for (const char* const line :
       {"psd_log_lines_dropped_total 3", "psd_log_lines_suppressed_total 4", "psd_checkpoint_disk_bytes 5",
        "psd_log_disk_bytes 6", "psd_trainer_reported_step{rank=\"2\"} 7", "psd_replica_standby 1",
        "psd_replica_waits 0", "psd_disk_free_bytes{path=\"/saved\"} 8",
        "psd_disk_size_bytes{path=\"/saved\"} 9", "psd_tls_certificate_expiry_timestamp_seconds 10",
        "psd_learning_rate{group=\"fc*\"} 0.25"}) {
    INFO(line);
    CHECK(text.find("\n" + std::string(line) + "\n") != std::string::npos);
  }
  status.replicaSet = ReplicaSetStatus{.role = "syncing", .waits = "the primary"};
  const std::string waiting = exposition(status, HttpMetrics(), {});
  CHECK(waiting.find("\npsd_replica_standby 0\n") != std::string::npos);
  CHECK(waiting.find("\npsd_replica_waits 1\n") != std::string::npos);
}

TEST_CASE("a host is matched with the name that it is listened at, in any spelling") {
  const HostNames names({Address{.kind = Address::Kind::tcp, .host = "Node7.Example", .port = 5580}});
  const auto table = kj::HttpHeaderTable::Builder().build();
  const auto knows = [&](kj::StringPtr host) {
    kj::HttpHeaders headers(*table);
    headers.set(kj::HttpHeaderId::HOST, host);
    return names.knows(headers);
  };
  CHECK(knows("node7.example:5580"));
  CHECK(knows("NODE7.example"));
  CHECK(knows("LOCALHOST:1"));
  CHECK(knows("[::1]:5580"));
  CHECK_FALSE(knows("node8.example:5580"));
}

TEST_CASE("the exposition explains every metric, with samples or without, and escapes labels") {
  DaemonStatus status;
  status.policy = "a \"quoted\"\\ policy\n";
  status.trainers.push_back({.rank = 3, .step = 7});
  status.histograms[daemonMetrics().staleness] = {
      .count = 3, .sum = 4, .most = 3, .buckets = {{.atMost = 1, .count = 2}, {.count = 1}}};
  const HttpMetrics http;
  const std::string alone = exposition(status, http, {});
  CHECK(alone.find("\n# TYPE psd_replica_primary gauge\n") != std::string::npos);
  CHECK(alone.find("\npsd_replica_primary ") == std::string::npos);
  CHECK(alone.find("\npsd_partition") == std::string::npos);
  status.partition = PartitionStatus{1, 3, {}};
  status.replicaSet = ReplicaSetStatus{.role = "primary",
                                       .term = 3,
                                       .standby = "07",
                                       .follower = "07",
                                       .lagBytes = 17,
                                       .engine = "it does not answer"};
  DaemonRows all;
  all.daemons.push_back({.partition = 1,
                         .address = "tcp://a:1",
                         .here = true,
                         .polled = true,
                         .answers = true,
                         .role = "primary",
                         .term = 3,
                         .standbyInSync = true,
                         .lagBytes = 17});
  all.daemons.push_back(
      {.partition = 1, .address = "tcp://b:1", .polled = true, .role = "standby", .term = 3});
  all.daemons.push_back({.partition = 2, .address = "tcp://c:1"});  // its status is unknown yet
  const std::string text = exposition(status, http, all);
  const std::string here = R"({partition="1",role="primary",address="tcp://a:1"} )";
  CHECK(text.find("\npsd_daemon_up" + here + "1\n") != std::string::npos);
  CHECK(text.find("\npsd_daemon_up{partition=\"1\",role=\"standby\",address=\"tcp://b:1\"} 0\n") !=
        std::string::npos);
  CHECK(text.find("\npsd_daemon_term" + here + "3\n") != std::string::npos);
  CHECK(text.find("\npsd_daemon_standby_in_sync" + here + "1\n") != std::string::npos);
  CHECK(text.find("\npsd_daemon_lag_bytes" + here + "17\n") != std::string::npos);
  CHECK(text.find("\npsd_daemon_waits" + here + "0\n") != std::string::npos);
  CHECK(text.find("psd_daemon_term{partition=\"1\",role=\"standby\"") == std::string::npos);
  CHECK(text.find("tcp://c:1") == std::string::npos);
  CHECK(alone.find("\n# TYPE psd_daemon_up gauge\n") != std::string::npos);
  CHECK(alone.find("\npsd_daemon_up") == std::string::npos);
  CHECK(text.find("\npsd_replica_primary 1\n") != std::string::npos);
  CHECK(text.find("\npsd_replica_term 3\n") != std::string::npos);
  CHECK(text.find("\npsd_partition{index=\"1\",of=\"3\"} 1\n") != std::string::npos);
  CHECK(text.find("\npsd_daemon_info{partition=\"1\",role=\"primary\",daemon=\"\"} 1\n") !=
        std::string::npos);
  CHECK(text.find("\npsd_replica_waits_for_standby 0\n") != std::string::npos);
  CHECK(text.find("\npsd_replica_waits_for_disk 0\n") != std::string::npos);
  CHECK(text.find("\npsd_replica_standby_in_sync 1\n") != std::string::npos);
  CHECK(text.find("\npsd_replica_lag_bytes 17\n") != std::string::npos);
  CHECK(text.find("\npsd_replica_engine_answers 0\n") != std::string::npos);
  CHECK(text.find("policy=\"a \\\"quoted\\\"\\\\ policy\\n\"") != std::string::npos);
  CHECK(text.find("\npsd_trainer_step{rank=\"3\"} 7\n") != std::string::npos);
  CHECK(text.find("\n# TYPE psd_table_rows gauge\n") != std::string::npos);
  CHECK(text.find("psd_staleness_bucket{le=\"1\"} 2\npsd_staleness_bucket{le=\"+Inf\"} 3\n"
                  "psd_staleness_sum 4\npsd_staleness_count 3\n") != std::string::npos);
  size_t helps = 0, types = 0;
  for (size_t at = 0; (at = text.find("# HELP ", at)) != std::string::npos; at++) helps++;
  for (size_t at = 0; (at = text.find("# TYPE ", at)) != std::string::npos; at++) types++;
  CHECK(helps == types);
  CHECK(helps > 60);
}

TEST_CASE("the exposition has each group's rounds, their contributors and those left out") {
  DaemonStatus status;
  const HttpMetrics http;
  const auto lines = [&] { return exposition(status, http, {}); };
  const auto has = [&](std::string_view line) {
    return lines().find(fmt::format("\n{}\n", line)) != std::string::npos;
  };
  CHECK(has("# TYPE psd_rounds_left_out_total counter"));
  CHECK(lines().find("\npsd_round_contributed{") == std::string::npos);
  status.rounds = {{.group = "fragment 0",
                    .policy = "diloco",
                    .closed = 9,
                    .in = {0, 3},
                    .missing = {2},
                    .late = {3},
                    .openSeconds = 4,
                    .graceSeconds = 1.5,
                    .contributed = {0, 1, 3},
                    .graceLeftSeconds = 0.5,
                    .leftOut = {{.rank = 2, .rounds = 14, .running = 12}, {.rank = 3, .rounds = 1}}},
                   {.group = "fragment 1", .policy = "diloco", .closed = 8, .in = {0, 2, 3}}};
  for (const char* line :
       {"psd_rounds_closed_total{group=\"fragment 0\"} 9", "psd_rounds_closed_total{group=\"fragment 1\"} 8",
        "psd_round_open_seconds{group=\"fragment 0\"} 4", "psd_round_grace_seconds{group=\"fragment 0\"} 1.5",
        "psd_round_grace_left_seconds{group=\"fragment 0\"} 0.5",
        "psd_round_contributors{group=\"fragment 0\"} 3", "psd_round_contributors{group=\"fragment 1\"} 0",
        "psd_round_contributed{group=\"fragment 0\",rank=\"3\"} 1",
        "psd_round_contributed{group=\"fragment 0\",rank=\"2\"} 0",
        "psd_round_contributed{group=\"fragment 1\",rank=\"2\"} 1",
        "psd_round_late{group=\"fragment 0\",rank=\"0\"} 0",
        "psd_round_late{group=\"fragment 0\",rank=\"3\"} 1",
        "psd_rounds_left_out_total{group=\"fragment 0\",rank=\"2\"} 14",
        "psd_rounds_left_out_running{group=\"fragment 0\",rank=\"2\"} 12",
        "psd_rounds_left_out_running{group=\"fragment 0\",rank=\"3\"} 0"}) {
    CAPTURE(line);
    CHECK(has(line));
  }
  // The other one has no grace rule.
  CHECK(lines().find("psd_round_grace_seconds{group=\"fragment 1\"") == std::string::npos);
}

}  // namespace
}  // namespace psd::http_test
