#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <kj/async.h>

#include "server/hosting/parameter_host.h"
#include "server/loop/background.h"
#include "server/publish/version_store.h"

namespace psd {

/// The published versions that arrive with a model: receives one file after another and hands them to the
/// VersionStore, which hides them from readers until the move is committed. Owned by the control loop's
/// thread.
class ArrivingVersions final {
 public:
  /// It outlives this object.
  explicit ArrivingVersions(ParameterHost& host) : host_(host) {}

  /// The move whose versions arrive or have arrived; 0: none.
  uint64_t move() const { return move_; }
  /// The versions of this move arrive, in place of those of an earlier one; no-op if they do already.
  /// ErrorCode::invalidArgument: versions were published here.
  Status begin(uint64_t move);
  /// The folder has the versions of a move that is not known to be committed.
  void found(uint64_t move);
  /// Receives a piece of the file of a version, and its end; see VersionStore::arrive(). The latter resolves
  /// once the version is stored. `most`: limit for held().
  Status image(std::span<const std::byte> bytes, uint64_t most);
  kj::Promise<Status> imageDone(uint64_t oldest);
  /// All versions are here; resolves once they survive a restart.
  kj::Promise<Status> install(VersionsContinuation continuation);
  /// Removes the versions; resolves once that is done, which happens in any case. After an error call it
  /// again.
  kj::Promise<Status> cancel();
  /// The move is committed: readers see the versions.
  void show();
  /// Bytes of memory for files that are not stored yet.
  uint64_t held() const { return held_; }

 private:
  void dropFile();
  /// Runs `work` on a thread, after the calls before.
  kj::Promise<Status> enqueue(std::function<Status(VersionStore&)> work);

  ParameterHost& host_;
  uint64_t move_ = 0;
  /// Outcome of VersionStore::beginArrival(), for the calls after it. Null: the store has no versions that
  /// a cancellation would remove. The value belongs to the threads of `queue_`.
  std::shared_ptr<Status> begun_;
  std::vector<std::byte> file_;  // received so far
  uint64_t held_ = 0;
  Background background_;
  kj::ForkedPromise<void> queue_ = kj::Promise<void>(kj::READY_NOW).fork();  // last: it uses the above
};

}  // namespace psd
