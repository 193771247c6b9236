#pragma once

#include "server/metrics/counters.h"
#include "server/push/push_slice.h"
#include "server/push/step_push.h"

namespace psd {

/// Counts what one trainer pushes and what becomes of it. Belongs to the trainer's home loop; the counters
/// are thread-safe.
class PushMeter {
 public:
  PushMeter(DaemonMetrics& daemon, SessionCounters& session) : daemon_(daemon), session_(session) {}

  /// A slice that its policy took.
  void taken(const PushSlice& slice);
  /// The answer to a slice that its policy took.
  void answered(const Result<PushAnswer>& answer);
  /// A slice that came again and was not applied again.
  void repeated() { daemon_.repeatedSlices.add(); }
  /// A gradient of which everything is known: the worst that became of it in a shard counts.
  void over(const StepPush& step);
  /// A slice waits for its policy, or for its turn to get there.
  void waits() { session_.waitForPush.add(); }
  void waitsNoMore() { session_.waitForPush.subtract(); }

 private:
  DaemonMetrics& daemon_;
  SessionCounters& session_;
};

}  // namespace psd
