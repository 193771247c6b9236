#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
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
  uint64_t history = 0;  ///< 0: that of the first renewal
  std::string server;    ///< of the daemon, as of then

  /// Whether the daemon's answer to a renewal is for the same version. notReady: the version is lost.
  Status checkRenewed(const Result<PublishedVersion>& answer, const std::string& server) const;
};

/// A lease that a reader hands over to another one. A value type.
struct HandedLease {
  VersionLease lease;
  Status lost;  ///< why, if it is
};

/// Renews leases of versions, over connections and on a thread of its own, so that they hold whatever the
/// program does. A lease is renewed at the daemon that has granted it, and where that one does not answer at
/// another one. Reconnects for as long as needed. Stops when destroyed. Thread-safe.
class LeaseKeeper {
 public:
  /// ErrorCode::overloaded if the system is out of threads.
  /// `servers`: the addresses of the daemons at the time of the call; thread-safe, outlives this object.
  /// `isPart`: as of ReadingLink::make().
  static Result<std::unique_ptr<LeaseKeeper>> make(ClientOptions options,
                                                   std::function<std::vector<std::string>()> servers,
                                                   bool isPart = false);
  ~LeaseKeeper();

  /// Keeps a lease that the daemon has just granted. ErrorCode::overloaded if the system is out of threads or
  /// descriptors.
  Status keep(const GrantedLease& granted);
  /// Keeps a lease of another keeper for a model that has moved to the daemon `server`: renews it there at
  /// once, and until the daemon grants it or has lost the version. Errors as of keep().
  Status takeOver(const HandedLease& handed, const std::string& server);
  /// Ends a lease of forget() at its daemon. Returns why it was lost since the last renewal, if it was.
  Status end(const GrantedLease& granted);
  /// Stops renewing a lease. Returns it, or why it was lost; invalidArgument: there is no such lease.
  Result<GrantedLease> forget(uint64_t lease);
  /// Stops renewing a lease, also one that is lost; nullopt: there is no such lease.
  std::optional<HandedLease> handOver(uint64_t lease);
  /// Of the leases that it keeps.
  std::vector<uint64_t> leases() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Kept {
    GrantedLease granted;
    Clock::time_point due;  ///< for renewal
    Status lost;
  };

  LeaseKeeper(ClientOptions options, std::function<std::vector<std::string>()> servers, bool isPart)
      : options_(std::move(options)), servers_(std::move(servers)), isPart_(isPart) {}

  void run();
  Status keep(const GrantedLease& granted, Clock::time_point due, const Status& lost);
  std::optional<Kept> take(uint64_t lease);
  /// The lease to renew next; nullopt: none. The mutex is held.
  std::optional<Kept> next() const;
  /// The addresses of the daemons, this one first if it is among them.
  std::vector<std::string> serversFrom(const std::string& server) const;
  /// The connection to the daemon of a lease that keep() has taken.
  ReadingLink& linkOf(const GrantedLease& granted);
  /// Outcome of a renewal, with its attempts to reconnect; the history of the version.
  Result<uint64_t> renew(const GrantedLease& granted, std::chrono::milliseconds timeout);
  static Clock::time_point dueAfter(const VersionLease& lease) {
    return Clock::now() + std::chrono::milliseconds(lease.time) / 3;
  }

  const ClientOptions options_;
  const std::function<std::vector<std::string>()> servers_;
  const bool isPart_;
  mutable std::mutex mutex_;                                   // guards the members below
  std::map<std::string, std::unique_ptr<ReadingLink>> links_;  // by GrantedLease::server; links stay
  std::condition_variable changed_;
  std::map<uint64_t, Kept> kept_;
  bool stops_ = false;

  std::thread thread_;  // last: it uses all members above
};

}  // namespace psd
