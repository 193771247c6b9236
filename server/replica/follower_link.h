#pragma once

#include <span>
#include <string>

#include <kj/async.h>

#include "server/replica/follower.h"

namespace psd {

/// The way from a primary to its follower: what the follower does comes back as the promise. Calls arrive in
/// their order. A broken connection is ErrorCode::unavailable. Owned by one event loop.
class FollowerLink {
 public:
  virtual ~FollowerLink() = default;
  virtual kj::Promise<Status> image(ImagePart part) = 0;
  virtual kj::Promise<Status> imageDone(const std::string& path) = 0;
  /// The bytes are copied before it returns. Gives the number of the first record that the follower does not
  /// hold, as beat() does.
  virtual kj::Promise<Result<uint64_t>> records(std::span<const std::byte> bytes) = 0;
  /// A sign of life.
  virtual kj::Promise<Result<uint64_t>> beat() = 0;
  /// The plan names the follower now, as standby or as primary: it looks.
  virtual kj::Promise<Status> planChanged() = 0;
  /// The run is over: the follower ends.
  virtual kj::Promise<Status> runEnded(const std::string& reason) = 0;
};

}  // namespace psd
