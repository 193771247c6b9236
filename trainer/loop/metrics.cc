#include "trainer/loop/metrics.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include <nlohmann/json.hpp>

namespace psd {

namespace {

/// Whether the file is one whose last line was cut off, with its writer.
bool endsInMidLine(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  std::ifstream file(path, std::ios::binary);
  return file.seekg(-1, std::ios::end) && file.get() != '\n';
}

}  // namespace

MetricsWriter::MetricsWriter(std::string path) : path_(std::move(path)), file_(path_, std::ios::app) {
  if (file_ && endsInMidLine(path_)) file_ << '\n';
}

Result<std::unique_ptr<MetricsWriter>> MetricsWriter::create(const std::string& path) {
  errno = 0;
  std::unique_ptr<MetricsWriter> writer(new MetricsWriter(path));
  if (!writer->file_) {
    return Error{ErrorCode::io, path + ": cannot be written: " + std::strerror(errno)};
  }
  return writer;
}

void MetricsWriter::onStep(const StepReport& report) {
  const nlohmann::ordered_json line = {
      {"step", report.step},
      {"epoch", report.epoch},
      {"loss", report.loss},
      {"batch", report.samples},
      {"samples_per_s", report.samples / report.seconds()},
      {"staleness", report.staleness},
      {"late", report.late},
      {"stale", report.stale},
      {"inflight", report.inflight},
      {"pull_s", report.pullSeconds},
      {"compute_s", report.computeSeconds},
      {"push_s", report.pushSeconds},
      {"push_bytes", report.pushBytes},
      {"compression", report.pushBytes == 0 ? 0
                                            : static_cast<double>(report.gradientBytes) /
                                                  static_cast<double>(report.pushBytes)}};
  file_ << line.dump() << '\n' << std::flush;
}

Status MetricsWriter::finish() {
  file_.close();
  if (file_) return {};
  return {ErrorCode::io, path_ + ": not every line could be written; is the disk full?"};
}

}  // namespace psd
