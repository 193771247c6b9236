#include "trainer/bench/bench.h"

#include <nlohmann/json.hpp>

#include "test/support/catch.h"
#include "test/support/local_server.h"

namespace psd {
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
      // One round more: the warm-up.
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
      CHECK(json["pull_transport"] == (joins ? "rpc" : ""));  // the address is of TCP
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

}  // namespace psd
