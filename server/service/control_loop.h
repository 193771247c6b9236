#pragma once

#include <utility>

#include "server/coordination/coordinator.h"
#include "server/hosting/parameter_host.h"
#include "server/hosting/step_reports.h"

namespace psd {

/// The way from an event loop to what belongs to the control loop. Thread-safe; outlives the loops.
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
  /// Before samples are assigned, or a trainer brings some: what becomes of steps is reported from now on.
  void samplesAreAssigned() { reports_.begin(); }

 private:
  const kj::Executor& executor_;
  Coordinator& coordinator_;
  ParameterHost& host_;
  StepReports& reports_;
};

}  // namespace psd
