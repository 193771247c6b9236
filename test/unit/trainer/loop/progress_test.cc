#include "trainer/loop/progress.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "test/support/catch.h"
#include "test/support/temp_dir.h"
#include "trainer/eval/evaluate.h"
#include "trainer/loop/metrics.h"

namespace psd::progress_test {
namespace {

using Catch::Matchers::Contains;

StepReport report(uint64_t step, uint64_t totalSteps, bool endsEpoch = false) {
  StepReport report;
  report.step = step;
  report.totalSteps = totalSteps;
  report.epoch = report.totalEpochs = 1;
  report.endsEpoch = endsEpoch;
  report.samples = 32;
  report.loss = 0.5;
  report.staleness = 1;
  report.late = 4;
  report.inflight = 2;
  report.rows = 70;
  report.knownRows = 60;
  report.pushBytes = 100;
  report.pullBytes = 300;
  report.nonZeroWeights = 55;
  report.gradientBytes = 4000;
  report.pullSeconds = 0.25;
  report.computeSeconds = 0.5;
  report.pushSeconds = 0.25;
  return report;
}

/// Runs `steps` steps of `secondsPerStep` each on a manual clock, and returns the output.
std::string show(bool terminal, int steps, double secondsPerStep) {
  std::ostringstream out;
  double now = 100;
  Progress progress(out, terminal, Rank{1}, [&] { return now; });
  for (int step = 1; step <= steps; ++step) {
    now += secondsPerStep;
    progress.onStep(report(step, steps, step == steps));
  }
  progress.finish();
  return out.str();
}

std::vector<std::string> lines(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> result;
  for (std::string line; std::getline(in, line);) result.push_back(line);
  return result;
}

}  // namespace

TEST_CASE("durations are human-readable") {
  CHECK(formatDuration(0) == "0:00");
  CHECK(formatDuration(7.4) == "0:07");
  CHECK(formatDuration(59.6) == "1:00");
  CHECK(formatDuration(750) == "12:30");
  CHECK(formatDuration(3723) == "1:02:03");
  CHECK(formatDuration(-1) == "0:00");
}

TEST_CASE("while data is checked, bytes, rate and time left are shown") {
  ReadProgress progress{.bytes = 3 << 20, .totalBytes = 9 << 20, .seconds = 1.5};
  CHECK(formatReading(progress) == "checking the data: 3.0 MiB of 9.0 MiB  2.0 MiB/s  ETA 0:03");
  progress.bytes = 0;
  CHECK_THAT(formatReading(progress), Contains("checking the data: 0 B of 9.0 MiB  1 B/s"));
  progress = {.bytes = 9 << 20, .totalBytes = 9 << 20, .seconds = 4.5, .done = true};
  CHECK(formatReading(progress) == "checked the data: 9.0 MiB in 4.5 s");
}

TEST_CASE("a progress line shows epoch, step, loss, rate, staleness and time left") {
  CHECK(formatProgress(Rank{0}, report(120, 126), {0.12345, 1520.4, 12.2}) ==
        "rank 0  epoch 1/1  step 120/126  loss 0.1235  1520 samples/s  staleness 1  dropped 4  ETA 0:12");
  StepReport chosen = report(120, 126);
  chosen.autoBatch = true;
  CHECK_THAT(formatProgress(Rank{0}, chosen, {}), Contains("step 120/126  batch 32  loss"));
  CHECK_THAT(formatProgress(Rank{0}, report(120, 126), {0.1, 1520, 12, 3 << 20}),
             Contains("1520 samples/s  read 3.0 MiB  staleness 1"));
  StepReport thrifty = report(120, 126);
  thrifty.late = 0;
  CHECK_THAT(formatProgress(Rank{0}, thrifty, {}), Contains("staleness 1  ETA"));
  thrifty.stale = 3;
  CHECK_THAT(formatProgress(Rank{0}, thrifty, {}), Contains("staleness 1  dropped 3  ETA"));
}

TEST_CASE("without a terminal: a line about every two seconds and at the end") {
  const auto shown = lines(show(false, 100, 0.1));  // ten seconds
  REQUIRE(shown.size() >= 4);
  CHECK(shown.size() <= 6);
  CHECK_THAT(shown[0], Contains("rank 1  epoch 1/1") && Contains("320 samples/s"));
  CHECK_THAT(shown.back(), Contains("step 100/100") && Contains("ETA 0:00"));
  CHECK_THAT(shown[0], !Contains("\r"));
}

TEST_CASE("without a terminal a short run still shows its end") {
  const auto shown = lines(show(false, 3, 0.1));
  REQUIRE(shown.size() == 1);
  CHECK_THAT(shown[0], Contains("step 3/3"));
}

TEST_CASE("on a terminal: one live line, rewritten at a bounded rate") {
  const std::string shown = show(true, 1000, 0.01);  // ten seconds
  CHECK(lines(shown).size() == 1);
  const auto rewrites = std::count(shown.begin(), shown.end(), '\r');
  CHECK(rewrites >= 50);
  CHECK(rewrites <= 101);
  CHECK_THAT(shown, Contains("3200 samples/s") && Contains("ETA 0:05"));
}

TEST_CASE("the rate follows a change of pace within seconds") {
  std::ostringstream out;
  double now = 0;
  Progress progress(out, false, Rank{0}, [&] { return now; });
  for (int step = 1; step <= 200; ++step) {
    now += step <= 100 ? 0.1 : 0.2;
    progress.onStep(report(step, 1000));
  }
  CHECK_THAT(lines(out.str()).back(), Contains("160 samples/s"));
}

TEST_CASE("the summary distinguishes a finished run from a stopped one") {
  TrainingSummary summary{10, 320, 2.0, 0.25, 0.5, 3, false};
  CHECK(formatSummary(Rank{2}, summary) ==
        "rank 2  done after 10 steps, 320 samples in 2.0 s (160 samples/s), loss 0.2500, staleness "
        "mean 0.5 max 3");
  summary.late = 3;
  CHECK_THAT(formatSummary(Rank{2}, summary), Contains("max 3, dropped 3 late 0 stale"));
  summary.interrupted = true;
  CHECK_THAT(formatSummary(Rank{2}, summary), Contains("rank 2  stopped after 10 steps"));
  CHECK(formatSummary(Rank{2}, TrainingSummary{}) ==
        "rank 2  nothing left to do: all samples of all epochs are done");
  const TrainingSummary atOnce{.interrupted = true};
  CHECK_THAT(formatSummary(Rank{2}, atOnce), Contains("rank 2  stopped after 0 steps"));
}

TEST_CASE("metrics are JSON lines that can be followed while they are written") {
  const testing::TempDir folder;
  const std::string path = folder.file("metrics.jsonl");
  auto writer = MetricsWriter::create(path);
  PSD_REQUIRE_OK(writer);
  (*writer)->setRank(Rank{3});
  const auto unixSeconds = [] {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  };
  const double before = unixSeconds();
  (*writer)->onStep(report(1, 2));
  CHECK(lines(testing::readFile(path)).size() == 1);
  StepReport diverged = report(2, 2);
  diverged.loss = std::numeric_limits<double>::quiet_NaN();
  (*writer)->onStep(diverged);
  PSD_REQUIRE_OK((*writer)->finish());

  const auto written = lines(testing::readFile(path));
  REQUIRE(written.size() == 2);
  auto json = nlohmann::json::parse(written[0]);
  CHECK(json["time"].get<double>() > before - 0.001);  // rounded to milliseconds
  CHECK(json["time"].get<double>() < unixSeconds() + 0.001);
  json.erase("time");
  CHECK(json["run"] == nlohmann::json::parse(written[1])["run"]);
  CHECK(json["run"].get<std::string>().size() == 16);
  json.erase("run");
  CHECK(json == nlohmann::json{{"rank", 3},
                               {"step", 1},
                               {"epoch", 1},
                               {"loss", 0.5},
                               {"batch", 32},
                               {"samples_per_s", 32.0},
                               {"staleness", 1},
                               {"late", 4},
                               {"stale", 0},
                               {"inflight", 2},
                               {"rows", 70},
                               {"known_rows", 60},
                               {"pull_s", 0.25},
                               {"compute_s", 0.5},
                               {"push_s", 0.25},
                               {"push_bytes", 100},
                               {"pull_bytes", 300},
                               {"nonzero_weights", 55},
                               {"compression", 40.0}});
  CHECK(nlohmann::json::parse(written[1])["loss"].is_null());
}

TEST_CASE("a trainer that is restarted appends to the metrics of the previous one") {
  const testing::TempDir folder;
  const std::string path = folder.file("metrics.jsonl");
  testing::writeFile(path, "{\"step\": 1}\n{\"step\": 2, \"lo");  // killed while it wrote
  for (const uint64_t step : {1, 2}) {
    auto writer = MetricsWriter::create(path);
    PSD_REQUIRE_OK(writer);
    (*writer)->onStep(report(step, 1));
    PSD_REQUIRE_OK((*writer)->finish());
  }
  const auto written = lines(testing::readFile(path));
  REQUIRE(written.size() == 4);
  CHECK(written[1] == "{\"step\": 2, \"lo");
  CHECK(nlohmann::json::parse(written[2])["step"] == 1);
  CHECK(nlohmann::json::parse(written[3])["step"] == 2);
  CHECK(nlohmann::json::parse(written[2])["run"] != nlohmann::json::parse(written[3])["run"]);
}

TEST_CASE("a metrics file that cannot be written is named") {
  const auto writer = MetricsWriter::create("/nowhere/metrics.jsonl");
  REQUIRE_FALSE(writer.ok());
  CHECK_THAT(writer.message(), Contains("/nowhere/metrics.jsonl: cannot be written: No such file"));
}

TEST_CASE("metrics that did not reach the disk are an error at the end") {
  auto writer = MetricsWriter::create("/dev/full");
  PSD_REQUIRE_OK(writer);
  (*writer)->onStep(report(1, 1));
  CHECK_THAT((*writer)->finish().message(), Contains("/dev/full: not every line"));
}

TEST_CASE("scores are formatted for humans and for programs") {
  const Score score{
      1000,
      {Metric::of("loss", MetricKind::mean, 50, 1000), Metric::of("accuracy", MetricKind::share, 975, 1000)}};
  CHECK(formatScore(score, "1000 images") == "loss 0.0500, accuracy 97.50 % on 1000 images");
  const auto json = nlohmann::json::parse(formatJson({"mlp", "d", {Version{3}, Version{4}}, score}));
  CHECK(json["accuracy"] == 0.975);
  CHECK(json["loss"] == 0.05);
  CHECK(json["samples"] == 1000);
  CHECK(json["model"] == "mlp");
  CHECK(json["versions"] == nlohmann::json{3, 4});
  CHECK_FALSE(json.contains("seconds"));
  CHECK(nlohmann::json::parse(formatJson({"mlp", "d", {Version{3}}, score}, 1.5))["seconds"] == 1.5);
  CHECK(formatVersions({Version{4}, Version{4}}) == "version 4");
  CHECK(formatVersions({Version{4}, Version{3}, Version{5}}) == "versions 3 to 5");
}

}  // namespace psd::progress_test
