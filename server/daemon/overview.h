#pragma once

#include <memory>
#include <vector>

#include <kj/timer.h>

#include "server/daemon/peer_book.h"
#include "server/daemon/server.h"

namespace psd {

/// All daemons that serve this daemon's model, standbys included: this one from its own state, the others
/// from the status that they report. Owned by the control loop's thread.
class Overview {
 public:
  /// Null if there can be no other daemon: neither `daemons` nor an engine is configured. Presents the same
  /// credentials to the others as a standby does: those of `replication`, else of the environment. The
  /// arguments must outlive the result.
  static std::unique_ptr<Overview> make(const Server& server, kj::Timer& timer);

  /// The last known rows; triggers a refresh and does not wait for it. `status`: this daemon's, current.
  DaemonRows rows(const DaemonStatus& status);
  /// The rows after the other daemons were queried, or their time to answer has passed.
  kj::Promise<DaemonRows> refreshedRows();
  /// For occasional callers: resolves once seen() is a few seconds old at most, except for daemons that did
  /// not answer the previous query.
  kj::Promise<void> whenRefreshedOnce();
  /// Like rows(), without triggering a refresh.
  DaemonRows seen(const DaemonStatus& status);

 private:
  Overview(const Server& server, kj::Timer& timer, Result<Credentials> credentials);
  /// The other daemons that may exist, by partition.
  std::vector<PeerBook::Peers> peers();
  /// `others` with this daemon's row inserted.
  DaemonRows with(const DaemonStatus& status, std::vector<DaemonRow> others);
  /// The address by which the others know this daemon.
  Address ownAddress() const;

  const Server& server_;
  kj::Timer& timer_;
  std::vector<Address> otherReplica_;  // current or last known addresses of the other replica
  PeerBook book_;
};

}  // namespace psd
