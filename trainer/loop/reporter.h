#pragma once

#include <cstdint>
#include <functional>

#include "trainer/client/client.h"
#include "trainer/loop/loop_observer.h"
#include "trainer/loop/progress.h"

namespace psd {

/// Tells the daemon how training goes, twice a second at most: loss, samples and seconds of a step, of texts
/// tokens too, each the mean since the report before. Owned by one thread, like the client, which outlives
/// it.
class Reporter : public LoopObserver {
 public:
  /// `tokensPerSample`: 0 where samples are no texts.
  explicit Reporter(Client& client, uint64_t tokensPerSample = 0,
                    Progress::Clock clock = Progress::steadySeconds);

  void onStep(const StepReport& report) override;
  /// Tells what was not told yet.
  void finish();

 private:
  /// What came since the report before.
  struct Sums {
    uint64_t steps = 0, samples = 0;
    double loss = 0;  ///< times samples
    double pullSeconds = 0, computeSeconds = 0, pushSeconds = 0;
  };
  void tell(double now);

  Client& client_;
  const uint64_t tokensPerSample_;
  const Progress::Clock clock_;
  double told_;  // when
  uint64_t step_ = 0;
  Sums sums_;
};

}  // namespace psd
