#pragma once

#include <utility>

#include "server/coordination/coordinator.h"
#include "server/hosting/parameter_host.h"
#include "server/hosting/step_reports.h"

namespace psd {

/// Gives event loops access to the state owned by the control loop. Thread-safe; outlives the loops.
class ControlLoop {
 public:
  ControlLoop(const kj::Executor& executor, Coordinator& coordinator, ParameterHost& host,
              StepReports& reports)
      : executor_(executor), coordinator_(coordinator), host_(host), reports_(reports) {}

  /// Runs `work(coordinator, host)` on the control loop; the promise resolves on the caller's. `work` may
  /// return a promise.
  template <class Work>
  auto run(Work work) {
    return executor_.executeAsync(
        [this, work = std::move(work)]() mutable { return work(coordinator_, host_); });
  }
  /// Call before samples are assigned or a joining trainer declares held ones: from then on the outcomes of
  /// steps are reported.
  void samplesAreAssigned() { reports_.begin(); }

 private:
  const kj::Executor& executor_;
  Coordinator& coordinator_;
  ParameterHost& host_;
  StepReports& reports_;
};

}  // namespace psd
