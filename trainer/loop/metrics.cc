#include "trainer/loop/metrics.h"

#include <chrono>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/os/random_id.h"

namespace psd {

Result<std::unique_ptr<MetricsWriter>> MetricsWriter::create(const std::string& path) {
  PSD_ASSIGN_OR_RETURN(auto lines, JsonLines::create(path));
  return std::unique_ptr<MetricsWriter>(new MetricsWriter(std::move(lines)));
}

MetricsWriter::MetricsWriter(std::unique_ptr<JsonLines> lines)
    : lines_(std::move(lines)), run_(fmt::format("{:016x}", drawId())) {}

void MetricsWriter::onStep(const StepReport& report) {
  const std::chrono::duration<double> time = std::chrono::system_clock::now().time_since_epoch();
  nlohmann::ordered_json line = {
      {"time", std::round(time.count() * 1000) / 1000},
      {"rank", rank_.value},
      {"run", run_},
      {"step", report.step},
      {"epoch", report.epoch},
      {"loss", report.loss},
      {"batch", report.samples},
      {"samples_per_s", report.samples / report.seconds()},
      {"staleness", report.staleness},
      {"late", report.late},
      {"stale", report.stale},
      {"inflight", report.inflight},
      {"rows", report.rows},
      {"known_rows", report.knownRows},
      {"pull_s", report.pullSeconds},
      {"compute_s", report.computeSeconds},
      {"push_s", report.pushSeconds},
      {"push_bytes", report.pushBytes},
      {"pull_bytes", report.pullBytes},
      {"compression", report.pushBytes == 0 ? 0
                                            : static_cast<double>(report.gradientBytes) /
                                                  static_cast<double>(report.pushBytes)}};
  if (report.nonZeroWeights) line["nonzero_weights"] = *report.nonZeroWeights;
  if (report.rate) line["lr"] = *report.rate;
  lines_->add(line.dump());
}

}  // namespace psd
