#pragma once

#include <memory>
#include <vector>

#include <kj/timer.h>

#include "server/daemon/peer_book.h"
#include "server/daemon/server.h"

namespace psd {

/// All daemons that serve the model of this one, and their standbys: this one as it is, the others as they
/// say. Owned by the control loop's thread.
class Overview {
 public:
  /// Null where no other daemon can be: neither `daemons` nor an engine is configured. What others are shown
  /// is as for a standby: `replication`, else the environment. Both outlive it.
  static std::unique_ptr<Overview> make(const Server& server, kj::Timer& timer);

  /// As the others were seen last. `status`: this daemon's own, of now.
  DaemonRows rows(const DaemonStatus& status);
  /// Once they have been asked just now, or have had time to answer.
  kj::Promise<DaemonRows> rowsAsked();
  /// For who comes now and then: resolves once seen() tells of a look of the last seconds, but of those that
  /// were silent before.
  kj::Promise<void> whenSeen();
  /// As rows(), and nobody is asked.
  DaemonRows seen(const DaemonStatus& status);

 private:
  Overview(const Server& server, kj::Timer& timer, Result<Credentials> credentials);
  /// Who the others may be, by partition.
  std::vector<PeerBook::Peers> peers();
  /// The rows of the others, with this one's.
  DaemonRows with(const DaemonStatus& status, std::vector<DaemonRow> others);
  /// By which the others name this one.
  Address ownAddress() const;

  const Server& server_;
  kj::Timer& timer_;
  std::vector<Address> pair_;  // where the other one of the pair is, or was last
  PeerBook book_;
};

}  // namespace psd
