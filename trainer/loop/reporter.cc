#include "trainer/loop/reporter.h"

#include <array>
#include <utility>

namespace psd {
namespace {

constexpr double kTellEverySeconds = 0.5;

}  // namespace

Reporter::Reporter(Client& client, Progress::Clock clock)
    : client_(client), clock_(std::move(clock)), told_(clock_()) {}

void Reporter::onStep(const StepReport& report) {
  step_ = report.step;
  sums_.steps++;
  sums_.samples += report.samples;
  sums_.loss += report.loss * report.samples;
  sums_.pullSeconds += report.pullSeconds;
  sums_.computeSeconds += report.computeSeconds;
  sums_.pushSeconds += report.pushSeconds;
  const double now = clock_();
  if (now - told_ >= kTellEverySeconds) tell(now);
}

void Reporter::finish() {
  if (sums_.steps > 0) tell(clock_());
}

void Reporter::tell(double now) {
  const auto steps = static_cast<double>(sums_.steps), samples = static_cast<double>(sums_.samples);
  const double seconds = now - told_;
  const std::array<NamedValue, 5> values = {
      NamedValue{"loss", sums_.loss / samples},
      NamedValue{"samples_per_second", seconds > 0 ? samples / seconds : 0},
      NamedValue{"pull_seconds", sums_.pullSeconds / steps},
      NamedValue{"compute_seconds", sums_.computeSeconds / steps},
      NamedValue{"push_seconds", sums_.pushSeconds / steps}};
  (void)client_.report(Step{step_}, values);  // only names could be wrong
  sums_ = {};
  told_ = now;
}

}  // namespace psd
