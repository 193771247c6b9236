#pragma once

#include <atomic>

#include "server/coordination/coordinator.h"
#include "server/push/step_outcomes.h"

namespace psd {

/// Reports the outcome of steps with assigned samples to a Coordinator, on the control loop. Thread-safe.
class StepReports final : public StepOutcomes {
 public:
  /// `coordinator` may be constructed later, but before the first step.
  StepReports(const kj::Executor& controlLoop, Coordinator& coordinator)
      : controlLoop_(controlLoop), coordinator_(coordinator) {}

  /// Samples are assigned: reports steps from now on.
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
