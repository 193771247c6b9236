#pragma once

#include <memory>
#include <string>

#include <kj/async.h>

#include "server/replica/follower.h"
#include "server/replica/image_stream.h"
#include "server/serving/cluster_document.h"

namespace psd {

/// The parts of the daemon that a ReplicaController controls. Owned by the control loop's thread; every
/// method except makeCopy() is called on it.
class DaemonControl {
 public:
  virtual ~DaemonControl() noexcept(false) = default;

  // --- As primary ----------------------------------------------------------------------------------------

  /// Starts serving, as the first primary of its replica set or from the state it has saved. Blocks.
  virtual Status serve(uint64_t term) = 0;
  /// Continues to serve, in a new term.
  virtual void continueServing(uint64_t term) = 0;
  /// Whether this daemon saves the model on its disk.
  virtual bool saves() const = 0;
  /// Whether the model is initialized, so that another daemon can follow.
  virtual bool hasValues() const = 0;
  /// Writes the configuration and a checkpoint of the model to the stream, on a background thread; returns
  /// the checkpoint's path.
  virtual kj::Promise<Result<std::string>> sendCopy(std::shared_ptr<ImageStream> to) = 0;
  /// Accepts no more gradients; resolves with true once those in flight are applied and answered, with false
  /// if that takes too long.
  virtual kj::Promise<bool> closeGates() = 0;
  virtual void openGates() = 0;
  /// While the daemon waits before it restarts as a standby: closes the connections of trainers, which
  /// then look for the primary. Readers stay connected.
  virtual void disconnectTrainers() = 0;

  // --- As standby ----------------------------------------------------------------------------------------

  /// Creates a store from the checkpoint of the primary of that term. On any thread; blocks.
  virtual Result<CopyPlace> makeCopy(Env& files, const Checkpoint& checkpoint, uint64_t term) = 0;
  /// The copy is complete and follows the primary from now on.
  virtual void showCopy() = 0;
  /// Makes the copy the served model and starts serving.
  virtual void serveCopy(FollowedState followed, uint64_t term) = 0;
  /// The model is served by other daemons and no longer by this replica set.
  virtual void movedAway(const RecordedMove& moved) = 0;
  /// The primary has ended the run.
  virtual void exitWithPrimary(const std::string& reason) = 0;

  // --- As either -----------------------------------------------------------------------------------------

  /// Discards all state and restarts as a new process. Does not return.
  [[noreturn]] virtual void restartProcess(const std::string& why) = 0;
  /// The daemon cannot serve: it exits with this error.
  virtual void fail(const Status& why) = 0;
  /// Logs a change of the replica set, and adds it to the events.
  virtual void note(const std::string& what, const std::string& line) = 0;
};

}  // namespace psd
