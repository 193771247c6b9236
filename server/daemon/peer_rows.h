#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/os/address.h"
#include "server/status/daemon_row.h"
#include "server/status/daemon_status.h"

namespace psd {

/// Gradients per second of a process between two looks at its status. Owned by one thread.
class GradientRate {
 public:
  double next(const DaemonStatus& status);

 private:
  struct Seen {
    uint32_t pid = 0;
    std::string host;
    double uptimeSeconds = 0;
    uint64_t gradients = 0;
  };
  std::optional<Seen> seen_;
  double rate_ = 0;
};

/// The row of a daemon with this status, as it is reached at `address`. The rate is not set.
DaemonRow rowOf(const DaemonStatus& status, const Address& address);

/// By which address others know a daemon. `listed`: those of its partition in `daemons`, of a pair those of
/// both; `reached`: where it says that it is reached; `others`: of a pair, where the other one is; null: it
/// is alone.
Address addressForOthers(const std::vector<Address>& listed, const std::vector<Address>& reached,
                         const std::vector<Address>* others);

/// Which of a daemon's pages a browser finds that is where `address` leads to the daemon; empty: none.
std::string pageFor(const std::vector<std::string>& pages, const Address& address);

}  // namespace psd
