#include "trainer/eval/watch.h"

#include <algorithm>

#include "common/types/stopwatch.h"

namespace psd {

Status Watch::run(Milliseconds every, const Pause& pause, const WhenScored& whenScored,
                  const std::function<void(const Error&)>& whenWaiting) {
  using Clock = std::chrono::steady_clock;
  const auto stopRequested = [&] { return pause(Milliseconds(0)); };
  const auto isInterrupt = [](const Status& status) {
    return !status.ok() && status.error().code == ErrorCode::interrupted;
  };
  const Stopwatch sinceBegin;
  bool observes = false, waits = false;
  for (;;) {
    const Clock::time_point next = Clock::now() + every;
    if (!observes) {
      const Status observing = client_.observe(model_.spec()).status();
      observes = observing.ok();
      if (isInterrupt(observing)) return {};
      if (!observes && observing.error().code != ErrorCode::notReady) return observing;
      if (!observes && !waits) whenWaiting(observing.error());
      waits = !observes;
    }
    if (observes) {
      const double seconds = sinceBegin.seconds();
      const auto report = evaluateObserved(client_, model_, dataset_, stopRequested);
      if (isInterrupt(report.status())) return {};
      if (!report.ok()) return report.error();
      PSD_RETURN_IF_ERROR(whenScored(*report, seconds));
    }
    const auto left = std::chrono::ceil<Milliseconds>(next - Clock::now());
    if (pause(std::max(left, Milliseconds(0)))) return {};
  }
}

}  // namespace psd
