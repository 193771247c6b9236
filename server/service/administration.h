#pragma once

#include <functional>
#include <string>

#include "server/service/control_loop.h"

namespace psd {

/// What an operator may ask of a daemon, whatever protocol the question comes over. Thread-safe; outlives the
/// loops.
class Administration {
 public:
  /// `status` and `reload` run on the control loop; the whole daemon's.
  Administration(ControlLoop& control, std::function<DaemonStatus()> status,
                 std::function<kj::Promise<Result<std::string>>()> reload)
      : control_(control), status_(std::move(status)), reload_(std::move(reload)) {}

  kj::Promise<DaemonStatus> status() {
    return control_.run([this](Coordinator&, ParameterHost&) { return status_(); });
  }
  kj::Promise<Result<HotRowsStatus>> hotRows() {
    return control_.run([](Coordinator&, ParameterHost& host) { return host.models().hotRows(); });
  }
  /// Goes over to the configuration as it reads now; gives the change, for people.
  kj::Promise<Result<std::string>> reload() {
    return control_.run([this](Coordinator&, ParameterHost&) { return reload_(); });
  }
  /// Ends the run; `wait`: resolves with what came of the daemon's last work.
  kj::Promise<Status> stop(std::string reason, bool wait) {
    return control_.run([reason = std::move(reason), wait](Coordinator& coordinator,
                                                           ParameterHost&) mutable -> kj::Promise<Status> {
      coordinator.requestStop(std::move(reason));
      return wait ? coordinator.end().whenOutcome() : kj::Promise<Status>(Status());
    });
  }

 private:
  ControlLoop& control_;
  const std::function<DaemonStatus()> status_;
  const std::function<kj::Promise<Result<std::string>>()> reload_;
};

}  // namespace psd
