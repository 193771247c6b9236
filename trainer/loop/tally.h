#pragma once

#include <cstdint>

#include "trainer/client/api/client.h"
#include "trainer/loop/loop_observer.h"

namespace psd {

/// Totals of one trainer's run. A value type.
struct TrainingSummary {
  uint64_t steps = 0;
  uint64_t samples = 0;
  double seconds = 0;
  double loss = 0;  ///< mean over the processed samples of the last epoch
  double stalenessMean = 0;
  uint64_t stalenessMax = 0;
  bool interrupted = false;  ///< ended by shouldStop(), or by Client::interrupt() during the last pushes
  uint64_t late = 0;         ///< gradients dropped because their round was closed
  uint64_t stale = 0;        ///< gradients dropped because they were too stale
};

/// Accumulates reports and answers into a TrainingSummary. Owned by one thread.
class Tally {
 public:
  void addStep(const StepReport& report);
  void addAnswer(const PushInfo& answer);
  /// Counts a round that closed without this trainer's contribution.
  void addDropped() { ++summary_.late; }
  /// Fills in the newest answer's staleness and bytes (0 before the first), and the numbers of dropped
  /// gradients.
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
