#pragma once

#include <memory>
#include <span>
#include <string>

#include <kj/async.h>

#include "server/replica/follower.h"

namespace psd {

/// Calls from a primary to its follower; each promise resolves with the follower's answer. Calls arrive in
/// order. A broken connection is ErrorCode::unavailable. Owned by one event loop.
class FollowerLink {
 public:
  virtual ~FollowerLink() = default;
  virtual kj::Promise<Status> image(ImagePart part) = 0;
  virtual kj::Promise<Status> imageDone(const std::string& path) = 0;
  /// The next bytes of the stream of records: 8-byte aligned, and a multiple of 8. They are sent in place:
  /// `owner` keeps them alive, and they do not change until it is released. Resolves with the number of the
  /// first record that the follower does not hold, like beat().
  virtual kj::Promise<Result<uint64_t>> records(std::span<const std::byte> bytes,
                                                std::shared_ptr<const void> owner) = 0;
  /// A heartbeat.
  virtual kj::Promise<Result<uint64_t>> beat() = 0;
  /// The cluster document names the follower now, as standby or as primary: makes it read the document.
  virtual kj::Promise<Status> documentChanged() = 0;
  /// The run is over: makes the follower exit.
  virtual kj::Promise<Status> runEnded(const std::string& reason) = 0;
};

}  // namespace psd
