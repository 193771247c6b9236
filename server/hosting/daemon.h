#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <kj/async.h>

#include "common/status/status.h"
#include "server/config/daemon_config.h"
#include "server/serving/move_record.h"
#include "server/status/daemon_status.h"

namespace psd {

/// The daemon, as the replica set, the moves and the services see it. Owned by the control loop's thread, on
/// which every method is called unless it says otherwise; outlives its callers.
class Daemon {
 public:
  virtual ~Daemon() noexcept(false) = default;

  // --- Trainers ------------------------------------------------------------------------------------------

  /// Holds back new gradients. Resolves with true once those in flight are done, with false after
  /// limits.drain_ms.
  virtual kj::Promise<bool> closeGates() = 0;
  virtual void openGates() = 0;
  /// Closes the connections of all trainers, which then look for the primary. Readers stay connected.
  virtual void disconnectTrainers() = 0;
  /// The addresses at which other daemons, and trainers, reach this one.
  virtual std::vector<std::string> reachableAt() const = 0;

  // --- Replica set ---------------------------------------------------------------------------------------

  /// prepare(), but a model that arrived by an uncommitted move stays untouched until the move's outcome is
  /// known. Blocks.
  virtual Status resume() = 0;
  virtual const LoadedConfig& loaded() const = 0;
  /// Replaces the configuration. Called before any trainer was admitted.
  virtual void replaceConfig(LoadedConfig loaded) = 0;
  /// Discards all state and restarts as a new process. Does not return.
  [[noreturn]] virtual void restart(const std::string& why) = 0;
  /// The daemon cannot serve: it exits with this error.
  virtual void fail(const Status& why) = 0;
  /// The run is over: the daemon exits. No effect if it is exiting already.
  virtual void exit(const std::string& reason) = 0;
  /// Logs a change of the replica set as an event of this kind.
  virtual void note(const std::string& event, const std::string& line) = 0;

  // --- Moves ---------------------------------------------------------------------------------------------

  /// Resumes from the state in the folder, as at a start. Blocks.
  virtual Status prepare() = 0;
  /// The cluster document records that the model has moved.
  virtual void adoptMove(const RecordedMove& move) = 0;
  /// With an engine: records a move away in the cluster document. Resolves with whether it is recorded, or
  /// with an Error, once that is certain.
  virtual kj::Promise<Result<bool>> recordMove(const RecordedMove& move) = 0;
  /// Asks the lead of a move for its outcome; an Error if it is unreachable. On any thread; blocks.
  virtual Result<MoveOutcome> askLead(const MoveLead& lead, uint64_t move) const = 0;

  // --- Operators -----------------------------------------------------------------------------------------

  virtual DaemonStatus status() const = 0;
  /// Rereads the configuration and applies it. Resolves with a human-readable description of the change. On
  /// an error nothing has changed. `by`: the operator's name.
  virtual kj::Promise<Result<std::string>> reload(const std::string& by) = 0;
  /// Like reload(), with the current configuration changed in one key, "optimizer.lr=0.05".
  virtual kj::Promise<Result<std::string>> set(const std::string& assignment, const std::string& by) = 0;
  /// Checks whether set(assignment), or reload() if it is empty, would be accepted, as far as that is known
  /// before trainers are paused. Changes nothing and blocks neither a reload nor a move.
  virtual kj::Promise<Result<std::string>> checkChange(const std::string& assignment) = 0;
};

}  // namespace psd
