#pragma once

#include <memory>
#include <string>

#include <kj/async.h>

#include "server/replica/follower.h"
#include "server/replica/image_stream.h"

namespace psd {

/// The model of a daemon in a replica set, as its ReplicaController handles it. Owned by the control loop's
/// thread; every method except makeCopy() is called on it.
class ReplicatedModel {
 public:
  virtual ~ReplicatedModel() noexcept(false) = default;

  // --- As primary ----------------------------------------------------------------------------------------

  /// Starts to serve it, as the first primary of the replica set or from the state saved here.
  /// `hasAllVersions`: of those that readers may know, see VersionStore. Blocks.
  virtual Status serve(uint64_t term, bool hasAllVersions) = 0;
  /// Continues to serve it, in a new term.
  virtual void continueServing(uint64_t term) = 0;
  /// Whether this daemon saves it on its disk.
  virtual bool saves() const = 0;
  /// Whether it is initialized, so that another daemon can follow.
  virtual bool hasValues() const = 0;
  /// Writes the configuration and a checkpoint to the stream, on a background thread; returns the
  /// checkpoint's path.
  virtual kj::Promise<Result<std::string>> sendCopy(std::shared_ptr<ImageStream> to) = 0;

  // --- As standby ----------------------------------------------------------------------------------------

  /// Creates a store from the checkpoint of the primary of that term. On any thread; blocks.
  virtual Result<CopyPlace> makeCopy(Env& files, const Checkpoint& checkpoint, uint64_t term) = 0;
  /// The copy is complete and follows the primary from now on.
  virtual void showCopy() = 0;
  /// Makes the copy the served model and starts to serve it.
  virtual void serveCopy(FollowedState followed, uint64_t term) = 0;
};

}  // namespace psd
