#include "trainer/bench/bench.h"

#include <algorithm>

#include "test/support/catch.h"
#include "test/unit/trainer/client/fake_client.h"

namespace psd::bench_test {
namespace {

using testing::FakeClient;
using testing::FakeDaemon;

/// A short load on a daemon in this process.
Result<BenchReport> load(FakeDaemon& daemon, BenchOperation operation) {
  BenchOptions options;
  options.operation = operation;
  options.bytes = 4096;
  options.seconds = 0.01;
  return runBench(options, [&](const ClientOptions&) -> Result<std::unique_ptr<Client>> {
    return std::unique_ptr<Client>(new FakeClient(daemon));
  });
}

}  // namespace

TEST_CASE("bench pushes gradients of the newest version, and leaves") {
  const BenchOperation operation = GENERATE(BenchOperation::push, BenchOperation::pushpull);
  FakeDaemon daemon;
  const auto report = load(daemon, operation);
  PSD_REQUIRE_OK(report);
  CHECK(report->bytes == 4096);
  CHECK(report->rounds == daemon.steps.size() - 1);  // the first one warms up
  CHECK(daemon.staleness == std::vector<uint64_t>(daemon.steps.size(), 0));
  CHECK(daemon.destinations.size() == 1 + (operation == BenchOperation::push ? 0 : daemon.steps.size()));
  CHECK(daemon.left == 1);
}

TEST_CASE("a dropped gradient is not measured, and the next one is of a newer version") {
  for (const PushOutcome dropped : {PushOutcome::late, PushOutcome::stale}) {
    FakeDaemon daemon;
    daemon.outcomes = {PushOutcome::applied, dropped, PushOutcome::applied, dropped, dropped};
    const auto report = load(daemon, BenchOperation::push);
    PSD_REQUIRE_OK(report);
    REQUIRE(daemon.steps.size() > 5);
    CHECK(report->rounds == daemon.steps.size() - 4);  // one warmed up, three were dropped
    CHECK(daemon.staleness == std::vector<uint64_t>(daemon.steps.size(), 0));
    CHECK(daemon.destinations.size() == 1 + 3);
  }
}

TEST_CASE("a load of which nothing was applied has no figures") {
  FakeDaemon daemon;
  daemon.outcomes.assign(1'000'000, PushOutcome::late);
  const auto report = load(daemon, BenchOperation::push);
  REQUIRE_FALSE(report.ok());
  CHECK(report.error().code == ErrorCode::notReady);
  CHECK(
      report.error().message ==
      "no gradient was applied within 10.0 ms: each came too late, or was too stale for the daemon's policy");
  CHECK(daemon.left == 1);
}

}  // namespace psd::bench_test
