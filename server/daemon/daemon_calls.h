#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/auth/credentials.h"
#include "common/os/address.h"
#include "common/status/status.h"
#include "server/status/daemon_status.h"

namespace psd {

// Which daemons an operator's command is about. All block.

/// A running daemon, and how long to wait for its answer. A value type.
struct DaemonCall {
  std::vector<std::string> servers;  ///< addresses; the first that can be connected to counts
  std::chrono::milliseconds timeout{0};
  Credentials credentials;
};

/// The address to call: the only one, or the first that can be connected to. Warns of a token in the clear.
Result<Address> reachable(const DaemonCall& call);

/// One call for each of the daemons that serve the model of the one that is called, by partition; that one
/// alone, where it serves its model by itself.
Result<std::vector<DaemonCall>> allDaemons(const DaemonCall& call);

/// `here`: the daemon that is called alone; else allDaemons().
Result<std::vector<DaemonCall>> daemonsOf(const DaemonCall& call, bool here);

/// Of a call to a daemon, and perhaps its standby: the address that answers and serves.
Result<Address> servingOf(const DaemonCall& call);

/// The address to call: the only one, or of several that of the daemon that serves, else of one that is
/// there.
Result<Address> addressOf(const DaemonCall& call);

/// What the daemon at an address tells of itself.
Result<DaemonStatus> readStatusAt(const Address& address, const DaemonCall& call);
inline constexpr std::string_view kStateMoved = "moved";  ///< DaemonStatus::state: others have its model

/// Of all daemons that serve the model, the addresses to call. An Error where one of several does not answer.
Result<std::vector<Address>> servingAll(const DaemonCall& call);

/// Changes something at all daemons that serve the model, once all have answered, and of several none has
/// said by `mayChange(address)` that it would refuse; null: they are not asked. `change(address)` gives what
/// to print. Where it fails midway the error says so.
Status changeAll(const DaemonCall& call, const std::function<Result<std::string>(const Address&)>& change,
                 const std::function<Status(const Address&)>& mayChange = nullptr);

/// The status document; of a daemon with a standby, that of the one that serves, where it answers.
Result<nlohmann::ordered_json> statusOf(const DaemonCall& call);

}  // namespace psd
