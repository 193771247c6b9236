#pragma once

#include <map>
#include <memory>
#include <string>

#include <kj/async.h>
#include <kj/timer.h>

#include "server/loop/peer_connection.h"
#include "server/metrics/counters.h"

namespace psd {

/// The connections of one event loop: served until the peer goes or is to be cut off, which is looked for
/// several times in a lease. Owned by the loop's thread.
class PeerConnections final : private kj::TaskSet::ErrorHandler {
 public:
  PeerConnections(kj::Timer& timer, DaemonMetrics& counters);

  /// Begins to serve a connection, which is counted as open already.
  void adopt(std::shared_ptr<PeerConnection> connection);
  /// Ends a connection as soon as the current work on it is off the stack; `reason` empty: the peer left.
  void drop(PeerConnection& connection, std::string reason);
  /// drop() of all connections with trainers, who go on elsewhere: nobody is warned.
  void letTrainersGo();
  /// Ends all connections at once, and whatever is looked for. Nothing may be adopted after it.
  void closeAll();

  /// See PeerConnection::lookAtAccess().
  void lookAtAccess();

  /// No answer waits for its peer to read it.
  bool nothingQueued() const;
  bool hasTrainers() const;
  /// Some peer waits for what comes of the daemon's end.
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
