#include "trainer/loop/reporter.h"

#include <utility>
#include <vector>

namespace psd {
namespace {

constexpr double kReportIntervalSeconds = 0.5;

}  // namespace

Reporter::Reporter(Client& client, uint64_t tokensPerSample, Progress::Clock clock)
    : client_(client), tokensPerSample_(tokensPerSample), clock_(std::move(clock)), lastReportAt_(clock_()) {}

void Reporter::onStep(const StepReport& report) {
  step_ = report.step;
  sums_.steps++;
  sums_.samples += report.samples;
  sums_.loss += report.loss * report.samples;
  sums_.pullSeconds += report.pullSeconds;
  sums_.computeSeconds += report.computeSeconds;
  sums_.pushSeconds += report.pushSeconds;
  const double now = clock_();
  if (now - lastReportAt_ >= kReportIntervalSeconds) sendReport(now);
}

void Reporter::finish() {
  if (sums_.steps > 0) sendReport(clock_());
}

void Reporter::sendReport(double now) {
  const auto steps = static_cast<double>(sums_.steps), samples = static_cast<double>(sums_.samples);
  const double seconds = now - lastReportAt_;
  const double rate = seconds > 0 ? samples / seconds : 0;
  std::vector<NamedValue> values = {{"loss", sums_.loss / samples},
                                    {"samples_per_second", rate},
                                    {"pull_seconds", sums_.pullSeconds / steps},
                                    {"compute_seconds", sums_.computeSeconds / steps},
                                    {"push_seconds", sums_.pushSeconds / steps}};
  if (tokensPerSample_ != 0) {
    values.push_back({"tokens_per_second", rate * static_cast<double>(tokensPerSample_)});
  }
  (void)client_.report(Step{step_}, values);  // only names could be wrong
  sums_ = {};
  lastReportAt_ = now;
}

}  // namespace psd
