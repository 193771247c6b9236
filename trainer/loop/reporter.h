#pragma once

#include <cstdint>
#include <functional>

#include "trainer/client/api/client.h"
#include "trainer/loop/loop_observer.h"
#include "trainer/loop/progress.h"

namespace psd {

/// Reports progress to the daemon, at most twice a second: loss, samples, seconds per step and, for texts,
/// tokens; each is the mean since the previous report. Owned by one thread; the client outlives it.
class Reporter : public LoopObserver {
 public:
  /// `tokensPerSample`: 0 if the samples are not texts.
  explicit Reporter(Client& client, uint64_t tokensPerSample = 0,
                    Progress::Clock clock = Progress::steadySeconds);

  void onStep(const StepReport& report) override;
  /// Sends the values that have not been reported.
  void finish();

 private:
  /// Sums since the previous report.
  struct Sums {
    uint64_t steps = 0, samples = 0;
    double loss = 0;  ///< times samples
    double pullSeconds = 0, computeSeconds = 0, pushSeconds = 0;
  };
  void sendReport(double now);

  Client& client_;
  const uint64_t tokensPerSample_;
  const Progress::Clock clock_;
  double lastReportAt_;  // time of the last report
  uint64_t step_ = 0;
  Sums sums_;
};

}  // namespace psd
