#include "trainer/bench/bench.h"

#include <cmath>
#include <random>
#include <vector>

#include <nlohmann/json.hpp>

#include "test/support/catch.h"
#include "test/support/local_server.h"
#include "trainer/bench/rows_bench.h"
#include "trainer/bench/zipf.h"

namespace psd::bench_test {
namespace {

BenchOptions optionsFor(const testing::LocalServer& server, BenchOperation operation) {
  BenchOptions options;
  options.operation = operation;
  options.client.servers = {server.address()};
  options.client.chunkBytes = 64 << 10;
  options.bytes = 300'000;
  options.seconds = 0.05;
  return options;
}

}  // namespace

TEST_CASE("Bench: every operation measures what the daemon counts") {
  for (const auto& entry : benchOperations()) {
    for (uint32_t shards : {1u, 2u}) {
      INFO(entry.name << " with " << shards << " shards");
      testing::LocalServer server(nlohmann::ordered_json{{"shards", shards}});
      BenchOptions options = optionsFor(server, entry.operation);
      options.outstanding = 8;
      auto report = runBench(options, Client::connect);
      PSD_REQUIRE_OK(report);
      CHECK(report->trainers == 1);
      CHECK(report->rounds >= 1);
      CHECK(report->median > 0);
      CHECK(report->p99 >= report->median);
      CHECK(report->elapsed >= options.seconds);
      CHECK(report->fairness == 1);
      auto status = server.status();
      const bool pushes =
          entry.operation == BenchOperation::push || entry.operation == BenchOperation::pushpull;
      // One additional round: the warm-up.
      const uint64_t updates = pushes ? (report->rounds + 1) * shards : 0;
      CHECK(status["counters"]["updates"].get<uint64_t>() == updates);
      if (entry.operation == BenchOperation::latency) {
        CHECK(report->bytesPerSecond == 0);
      } else {
        CHECK(report->bytes >= options.bytes);
        CHECK(report->bytesPerSecond > 0);
      }
      auto json = nlohmann::json::parse(formatJson(*report));
      CHECK(json["operation"] == entry.name);
      const bool joins = entry.operation != BenchOperation::latency;
      CHECK(json["pull_transport"] == (joins ? "rpc" : ""));  // the address is TCP
      CHECK(json["push_transport"] == (joins ? "rpc" : ""));
      CHECK(json["rounds"] == report->rounds);
      CHECK(json["codec"] == "none");
      CHECK(json["pull_codec"] == "none");
      const std::string text = formatText(*report);
      CHECK(text.find(std::string(entry.name)) == 0);
      CHECK(text.find("codec") == std::string::npos);
      CHECK(text.find("nan") == std::string::npos);
    }
  }
}

TEST_CASE("Bench: rows are pulled and pushed in turns, or created, and the daemon counts as many") {
  const bool create = GENERATE(false, true), ring = GENERATE(false, true);
  testing::LocalServer server(nlohmann::ordered_json{{"row_shards", 2}});
  RowsBenchOptions options;
  options.client.servers = {ring ? server.unixAddress() : server.address()};
  options.ids = 300;
  options.dim = 8;
  options.rows = 2'000;
  options.tables = 2;
  options.skew = 1.05;
  options.create = create;
  options.seconds = 0.02;
  const auto report = runRowsBench(options, Client::connect);
  PSD_REQUIRE_OK(report);
  CHECK(report->pushes.count >= 1);
  CHECK(report->pushes.median > 0);
  CHECK(report->pushes.longest >= report->pushes.p99);
  CHECK(report->pulls.count == (create ? 0 : report->pushes.count));
  CHECK(report->rows > 0);
  CHECK(report->rows <= 300);
  CHECK(report->rowTransport == (ring ? "shm" : "rpc"));
  const auto tables = server.status()["tables"];
  CHECK(tables[0]["rows"] == 1'000);
  CHECK(tables[1]["rows"] == 1'000);
  CHECK((tables[0]["pulled_rows"] == 0) == create);
  const auto json = nlohmann::json::parse(formatJson(*report));
  CHECK(json["operation"] == "rows");
  CHECK(json["push"]["rows_per_s"] > 0);
  CHECK(json.contains("pull") == !create);
  const std::string text = formatText(*report);
  CHECK(text.find("rows") == 0);
  CHECK(text.find("nan") == std::string::npos);
}

TEST_CASE("Zipf's law: the first number comes as often as it says, and none is beyond the last") {
  std::mt19937_64 engine(1);
  for (const double exponent : {0.5, 1.0, 1.05, 2.0}) {
    INFO(exponent);
    constexpr uint64_t kNumbers = 1000;
    constexpr int kDraws = 100'000;
    double sum = 0;
    for (uint64_t i = 1; i <= kNumbers; i++) sum += std::pow(static_cast<double>(i), -exponent);
    const Zipf zipf(kNumbers, exponent);
    std::vector<int> counts(kNumbers + 1);
    for (int i = 0; i < kDraws; i++) counts.at(zipf(engine))++;
    CHECK(counts[0] == 0);
    for (const uint64_t number : {1, 2, 10}) {
      const double expected = kDraws * std::pow(static_cast<double>(number), -exponent) / sum;
      CHECK(std::abs(counts[number] - expected) < 5 * std::sqrt(expected));
    }
  }
}

TEST_CASE("Bench: a daemon with another model is left alone") {
  auto config = nlohmann::ordered_json::parse(
      R"({"model": {"name": "other", "tensors": [{"name": "w", "shape": [5, 3]}]}})");
  testing::LocalServer server(config);
  BenchOptions options = optionsFor(server, BenchOperation::pull);
  auto report = runBench(options, Client::connect);
  REQUIRE(!report.ok());
  CHECK(report.error().code == ErrorCode::modelMismatch);
  CHECK(report.message().find("w f32[5,3]") != std::string::npos);
}

}  // namespace psd::bench_test
