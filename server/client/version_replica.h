#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/auth/credentials.h"
#include "common/os/address.h"
#include "common/types/ended_histories.h"
#include "common/wire/stop_signal.h"
#include "server/client/version_client.h"
#include "server/publish/publish_outcomes.h"
#include "server/publish/version_store.h"

namespace psd {

/// Copies the versions of other daemons, on its own thread: follows one of them and hands each version to a
/// VersionStore; follows the next one when that daemon is away, is out of date itself, or still has versions
/// of a history that has ended. Thread-safe.
class VersionReplica {
 public:
  using Clock = std::chrono::steady_clock;

  struct Terms {
    std::vector<Address> upstream;                     ///< at least one
    std::function<Result<Credentials>()> credentials;  ///< read for each connection
    uint64_t self = 0;                                 ///< number of this daemon in VersionFreshness::path
  };

  /// `path`: the folder of the versions, for the status; empty: they are in memory.
  VersionReplica(std::shared_ptr<VersionStore> versions, Terms terms, std::string path);
  /// As stop().
  ~VersionReplica();
  /// Ends the thread, and all waits for versions (shuttingDown). Blocks until an attempt to connect, or the
  /// version that is being stored, is done. Idempotent.
  void stop();

  /// How current the versions are.
  VersionFreshness freshness() const;
  PublishStatus status() const;

 private:
  void run();
  /// Follows one daemon, terms_.upstream[followed_], until that ends.
  Status follow();
  Status admit(const VersionInfo& version);
  Result<bool> take(const PulledVersion& pulled);
  Status check(const VersionFreshness& upstream, Clock::time_point asked);
  /// Whether to leave an outdated daemon for another one.
  bool leaves(std::chrono::milliseconds age);
  /// Follows the daemon to which the model has moved, if it has, in place of the one followed last. Returns
  /// whether it does.
  bool followMove();
  /// Logs why a daemon is followed no longer, once for each reason.
  void note(const Status& ended);
  std::string address() const { return upstreams_[followed_].toString(); }

  const std::shared_ptr<VersionStore> versions_;
  const Terms terms_;
  const std::string path_;
  wire::StopSignal stop_;

  // Used by the thread, and by take() while that one waits for it:
  VersionInfo known_;  // the newest version here
  PatchBase base_;     // the version that was pulled last
  EndedHistories ended_;
  std::vector<Address> upstreams_;  // Terms::upstream, after the moves of the model
  size_t followed_ = 0;
  DaemonAddresses movedTo_;  // where the model of the daemon that was followed last is; empty: there
  std::string divided_;      // why a model that has moved is not followed any more; empty: it is
  Clock::time_point followedSince_;
  size_t outdated_ = 0;             // daemons in a row that were left for being out of date
  std::vector<std::string> noted_;  // by daemon, why it was left last, as logged; empty: it is followed
  Status here_;                     // an error on this side, which ended follow()
  bool hereFailed_ = false;         // since the last version that was kept

  mutable std::mutex mutex_;   // guards the members below
  Clock::time_point asked_;    // when the daemon was asked last
  VersionFreshness upstream_;  // as of its last answer
  Clock::time_point allAt_ =
      Clock::now() - VersionFreshness::kAgeUnknown;  // when the versions here were last all of the source's
  std::string source_;  // the address of the daemon that is followed; empty: none
  std::string error_;   // why none is
  PublishOutcomes outcomes_;
  uint64_t failures_ = 0;  // versions that could not be kept

  std::thread thread_;  // last: it uses all members above
};

}  // namespace psd
