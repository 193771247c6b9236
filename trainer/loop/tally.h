#pragma once

#include <cstdint>

#include "trainer/client/client.h"
#include "trainer/loop/loop_observer.h"

namespace psd {

/// What one trainer did. A value type.
struct TrainingSummary {
  uint64_t steps = 0;
  uint64_t samples = 0;
  double seconds = 0;
  double loss = 0;  ///< mean over the samples of the last epoch, as far as it went
  double stalenessMean = 0;
  uint64_t stalenessMax = 0;
  bool interrupted = false;  ///< shouldStop() ended it early, or Client::interrupt() its last pushes
  uint64_t late = 0;         ///< gradients that were dropped because their round was closed
  uint64_t stale = 0;        ///< and because they were too old
};

/// Adds up reports and answers to a TrainingSummary. Owned by one thread.
class Tally {
 public:
  void addStep(const StepReport& report);
  void addAnswer(const PushInfo& answer);
  /// A round has closed without what would have been pushed for it.
  void addDropped() { ++summary_.late; }
  /// What the answers so far say: the newest one's staleness (0 before the first), and how many were dropped.
  void describe(StepReport& report) const;
  TrainingSummary finish(double seconds, bool interrupted);

 private:
  TrainingSummary summary_;
  uint64_t epoch_ = 0;
  double epochLossSum_ = 0;
  double epochSamples_ = 0;
  uint64_t answers_ = 0;
  double stalenessSum_ = 0;
  uint64_t staleness_ = 0;
  uint64_t pushBytes_ = 0;
};

}  // namespace psd
