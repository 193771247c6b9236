#pragma once

#include <memory>
#include <string>

#include <kj/async.h>

#include "server/plan/plan.h"
#include "server/replica/follower.h"
#include "server/replica/image_stream.h"

namespace psd {

/// The daemon around a GroupMember, as far as that decides about it. Owned by the control loop's thread, on
/// which every method is called but makeCopy().
class GroupHost {
 public:
  virtual ~GroupHost() noexcept(false) = default;

  // --- As primary ----------------------------------------------------------------------------------------

  /// The daemon is its group's first primary, or goes on from what it has saved: it begins to serve. Blocks.
  virtual Status serve(uint64_t epoch) = 0;
  /// It goes on serving, in another epoch.
  virtual void serveOn(uint64_t epoch) = 0;
  /// Whether the model is kept on the disk of this daemon.
  virtual bool saves() const = 0;
  /// Whether the model has its values, so that another daemon can follow.
  virtual bool hasValues() const = 0;
  /// Writes the configuration and a checkpoint of the model to the stream, on a thread of its own; gives its
  /// path.
  virtual kj::Promise<Result<std::string>> sendCopy(std::shared_ptr<ImageStream> to) = 0;
  /// No gradient begins any more; resolves once those that have begun are in the model and answered, or not
  /// in time.
  virtual kj::Promise<bool> closeGates() = 0;
  virtual void openGates() = 0;
  /// Another daemon is the primary from now on. A trainer that hangs up is there, not lost.
  virtual void handOver() = 0;
  /// After handOver(), where the daemon waits before it begins anew: breaks the connections of trainers,
  /// which then look for the primary. Readers stay.
  virtual void letTrainersGo() = 0;

  // --- As standby ----------------------------------------------------------------------------------------

  /// Makes a place for a checkpoint of the primary of that epoch, with its values. On any thread; blocks.
  virtual Result<CopyPlace> makeCopy(Env& files, const Checkpoint& checkpoint, uint64_t epoch) = 0;
  /// The copy is in place and follows the primary from now on.
  virtual void showCopy() = 0;
  /// The copy is the model from now on, and the daemon serves.
  virtual void serveCopy(Followed followed, uint64_t epoch) = 0;
  /// The model is served by other daemons, and here by nobody any more.
  virtual void movedAway(const PlannedMove& moved) = 0;
  /// The primary has ended the run.
  virtual void endWithPrimary(const std::string& reason) = 0;

  // --- As either -----------------------------------------------------------------------------------------

  /// Throws everything away and begins as another process. Does not return.
  [[noreturn]] virtual void beginAnew(const std::string& why) = 0;
  /// The daemon cannot serve: it ends with this error.
  virtual void fail(const Status& why) = 0;
  /// Tells people, and as an event, what has become of the group.
  virtual void note(const std::string& what, const std::string& line) = 0;
};

}  // namespace psd
