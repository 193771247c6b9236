#pragma once

#include "server/metrics/counters.h"
#include "server/push/push_slice.h"
#include "server/push/step_push.h"

namespace psd {

/// Counts one trainer's pushes and their outcomes. Owned by the trainer's home loop; the counters are
/// thread-safe.
class PushMeter {
 public:
  PushMeter(DaemonMetrics& daemon, SessionCounters& session) : daemon_(daemon), session_(session) {}

  /// A slice that its policy accepted.
  void taken(const PushSlice& slice);
  /// The answer to a slice that its policy accepted.
  void answered(const Result<PushAnswer>& answer);
  /// A repeated slice that was not applied again.
  void repeated() { daemon_.repeatedSlices.add(); }
  /// A gradient whose outcome is known; the worst outcome of its shards counts.
  void over(const StepPush& step);
  /// A slice waits for its policy, or in the queue before it.
  void waits() { session_.waitForPush.add(); }
  void waitEnded() { session_.waitForPush.subtract(); }

 private:
  DaemonMetrics& daemon_;
  SessionCounters& session_;
};

}  // namespace psd
