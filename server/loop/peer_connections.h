#pragma once

#include <map>
#include <memory>
#include <string>

#include <kj/async.h>
#include <kj/timer.h>

#include "server/loop/peer_connection.h"
#include "server/metrics/counters.h"

namespace psd {

/// The connections of one event loop. A periodic sweep, several times per lease, ends those that must end.
/// Owned by the loop's thread.
class PeerConnections final : private kj::TaskSet::ErrorHandler {
 public:
  PeerConnections(kj::Timer& timer, DaemonMetrics& counters);

  /// Starts serving a connection, which is counted as open already.
  void adopt(std::shared_ptr<PeerConnection> connection);
  /// Ends a connection as soon as the current work on it is off the stack. Logs `reason` unless it is empty,
  /// i.e. the peer disconnected.
  void drop(PeerConnection& connection, std::string reason);
  /// Drops all connections with trainers, which continue elsewhere; logs nothing.
  void disconnectTrainers();
  /// Ends all connections immediately, and the sweep. Nothing may be adopted after it.
  void closeAll();

  /// See PeerConnection::recheckAccess().
  void recheckAccess();

  /// No answer is waiting to be read by its peer.
  bool nothingQueued() const;
  bool hasTrainers() const;
  /// Some peer waits for the outcome of the daemon's end.
  bool owesOutcome() const;

 private:
  kj::Promise<void> sweep();
  void detach(kj::Promise<void> task);
  void taskFailed(kj::Exception&& exception) override;

  kj::Timer& timer_;
  DaemonMetrics& counters_;
  std::map<PeerConnection*, std::shared_ptr<PeerConnection>> connections_;
  kj::Own<kj::TaskSet> tasks_;  // null after closeAll()
};

}  // namespace psd
