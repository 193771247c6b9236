#pragma once

#include <atomic>

#include "server/coordination/coordinator.h"
#include "server/push/step_outcomes.h"

namespace psd {

/// Tells a Coordinator, over the control loop, what became of the steps for which it assigned samples.
/// Thread-safe.
class StepReports final : public StepOutcomes {
 public:
  /// `coordinator` may be made later, but is there before the first step.
  StepReports(const kj::Executor& controlLoop, Coordinator& coordinator)
      : controlLoop_(controlLoop), coordinator_(coordinator) {}

  /// Samples are assigned: from now on steps are reported.
  void begin() { wanted_ = true; }
  bool wanted() const override { return wanted_; }
  kj::Promise<void> tell(ProcessId process, Step step, bool applied) override {
    return controlLoop_.executeAsync(
        [this, process, step, applied] { coordinator_.samples().stepOver(process, step, applied); });
  }

 private:
  const kj::Executor& controlLoop_;
  Coordinator& coordinator_;
  std::atomic<bool> wanted_{false};
};

}  // namespace psd
