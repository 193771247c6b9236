#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "trainer/client/reading_link.h"
#include "trainer/client/version_calls.h"

namespace psd {

/// A lease that the daemon has granted for a version of a history. A value type.
struct GrantedLease {
  VersionLease lease;
  uint64_t history = 0;

  /// Whether the daemon's answer to a renewal is for the same version. notReady: the version is lost.
  Status checkRenewed(const Result<PublishedVersion>& answer, const std::string& server) const;
};

/// Renews leases of versions, over a connection and on a thread of its own, so that they hold whatever the
/// program does. Reconnects for as long as needed. Stops when destroyed. Thread-safe.
class LeaseKeeper {
 public:
  /// ErrorCode::overloaded if the system is out of threads or descriptors.
  static Result<std::unique_ptr<LeaseKeeper>> make(ClientOptions options);
  ~LeaseKeeper();

  /// Keeps a lease that the daemon has just granted.
  void keep(const GrantedLease& granted);
  /// Stops renewing a lease. Returns it, or why it was lost; invalidArgument: there is no such lease.
  Result<GrantedLease> forget(uint64_t lease);
  /// Of the leases that it keeps.
  std::vector<uint64_t> leases() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Kept {
    GrantedLease granted;
    Clock::time_point due;  ///< for renewal
    Status lost;
  };

  explicit LeaseKeeper(std::unique_ptr<ReadingLink> link) : link_(std::move(link)) {}

  void run();
  /// The lease to renew next; nullopt: none. The mutex is held.
  std::optional<Kept> next() const;
  /// Outcome of a renewal.
  Status renew(const GrantedLease& granted);
  static Clock::time_point dueAfter(const VersionLease& lease) { return Clock::now() + lease.time / 3; }

  const std::unique_ptr<ReadingLink> link_;
  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::map<uint64_t, Kept> kept_;
  bool stops_ = false;

  std::thread thread_;  // last: it uses all members above
};

}  // namespace psd
