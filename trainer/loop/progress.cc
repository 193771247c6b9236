#include "trainer/loop/progress.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <utility>

#include "common/text/quantity.h"

namespace psd {
namespace {

constexpr double kTerminalIntervalSeconds = 0.1;
constexpr double kPlainIntervalSeconds = 2.0;
constexpr double kRateWindowSeconds = 2.0;
constexpr double kLossDecay = 0.95;

template <class... Values>
std::string format(const char* pattern, Values... values) {
  char text[256];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

unsigned long long wide(uint64_t value) { return value; }

}  // namespace

std::string formatDuration(double seconds) {
  const auto total = static_cast<unsigned long long>(std::llround(std::max(seconds, 0.0)));
  const auto hours = total / 3600, minutes = total / 60 % 60, rest = total % 60;
  return hours > 0 ? format("%llu:%02llu:%02llu", hours, minutes, rest)
                   : format("%llu:%02llu", minutes, rest);
}

std::string formatProgress(Rank rank, const StepReport& report, const Pace& pace) {
  const std::string batch = report.autoBatch ? format("  batch %u", report.samples) : "";
  const uint64_t late = report.late + report.stale;
  const std::string dropped = late > 0 ? format("  dropped %llu", wide(late)) : "";
  const std::string read = pace.sourceBytes > 0 ? "  read " + bytesText(pace.sourceBytes) : "";
  return format(
      "rank %u  epoch %llu/%llu  step %llu/%llu%s  loss %.4f  %.0f samples/s%s  staleness %llu%s  ETA %s",
      rank.value, wide(report.epoch), wide(report.totalEpochs), wide(report.step), wide(report.totalSteps),
      batch.c_str(), pace.loss, pace.samplesPerSecond, read.c_str(), wide(report.staleness), dropped.c_str(),
      formatDuration(pace.secondsLeft).c_str());
}

std::string formatReading(const ReadProgress& progress) {
  if (progress.done) {
    return "checked the data: " + bytesText(progress.bytes) + " in " + durationText(progress.seconds);
  }
  const double rate = std::max(static_cast<double>(progress.bytes) / std::max(progress.seconds, 1e-9), 1.0);
  const auto left = static_cast<double>(progress.totalBytes - progress.bytes);
  return "checking the data: " + bytesText(progress.bytes) + " of " + bytesText(progress.totalBytes) + "  " +
         bytesText(static_cast<uint64_t>(rate)) + "/s  ETA " + formatDuration(left / rate);
}

std::string formatSummary(Rank rank, const TrainingSummary& summary) {
  if (summary.steps == 0 && !summary.interrupted) {  // other trainers processed all samples
    return format("rank %u  nothing left to do: all samples of all epochs are done", rank.value);
  }
  const double rate = summary.seconds > 0 ? summary.samples / summary.seconds : 0;
  const std::string text = format(
      "rank %u  %s after %llu steps, %llu samples in %s (%.0f samples/s), loss %.4f, staleness "
      "mean %.1f max %llu",
      rank.value, summary.interrupted ? "stopped" : "done", wide(summary.steps), wide(summary.samples),
      durationText(summary.seconds).c_str(), rate, summary.loss, summary.stalenessMean,
      wide(summary.stalenessMax));
  if (summary.late + summary.stale == 0) return text;
  return text + format(", dropped %llu late %llu stale", wide(summary.late), wide(summary.stale));
}

double Progress::steadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Progress::Progress(std::ostream& out, bool terminal, Rank rank, Clock clock)
    : out_(out), terminal_(terminal), rank_(rank), clock_(std::move(clock)) {
  older_.time = newer_.time = lastShown_ = clock_();
}

Progress::~Progress() { finish(); }

void Progress::onStep(const StepReport& report) {
  ++steps_;
  samples_ += report.samples;
  sourceBytes_ += report.sourceBytes;
  loss_ = steps_ == 1 ? report.loss : kLossDecay * loss_ + (1 - kLossDecay) * report.loss;

  const Mark now{clock_(), steps_, samples_};
  const double interval = terminal_ ? kTerminalIntervalSeconds : kPlainIntervalSeconds;
  if (now.time - lastShown_ < interval && !report.endsEpoch) return;
  lastShown_ = now.time;
  show(formatProgress(rank_, report, paceAt(now, report)));
}

Pace Progress::paceAt(const Mark& now, const StepReport& report) {
  const double seconds = std::max(now.time - older_.time, 1e-9);
  const double stepSeconds = seconds / static_cast<double>(now.steps - older_.steps);
  const Pace pace{loss_, static_cast<double>(now.samples - older_.samples) / seconds,
                  stepSeconds * static_cast<double>(report.totalSteps - report.step), sourceBytes_};
  if (now.time - newer_.time >= kRateWindowSeconds) older_ = std::exchange(newer_, now);
  return pace;
}

void Progress::show(const std::string& line) {
  if (terminal_) {
    // Returns to column 0 and erases the line; with line wrap off, a narrow terminal shows only the start of
    // it.
    out_ << "\r\x1b[K\x1b[?7l" << line << "\x1b[?7h" << std::flush;
    lineOpen_ = true;
  } else {
    out_ << line << std::endl;
  }
}

void Progress::finish() {
  if (lineOpen_) out_ << std::endl;
  lineOpen_ = false;
}

}  // namespace psd
