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

// Resolves which daemons an operator's command applies to. All functions block.

/// How to call a running daemon. A value type.
struct DaemonCall {
  std::vector<std::string> servers;  ///< addresses; the first one that accepts a connection is used
  std::chrono::milliseconds timeout{0};
  Credentials credentials;
};

/// The address to call: the only one, or the first one that accepts a connection. Warns on standard error if
/// the token would be sent unencrypted.
Result<Address> reachableAddress(const DaemonCall& call);

/// One call per replica set that serves the model of the called daemon, in the order of partitions; only
/// `call` if that daemon serves the whole model.
Result<std::vector<DaemonCall>> allDaemons(const DaemonCall& call);

/// `here`: only the called daemon; else allDaemons().
Result<std::vector<DaemonCall>> daemonsOf(const DaemonCall& call, bool here);

/// The first address in `call` whose daemon answers and is the primary.
Result<Address> primaryAddress(const DaemonCall& call);

/// The address to call: the only one; of several the primary's, or else the first one that accepts a
/// connection.
Result<Address> addressOf(const DaemonCall& call);

/// The status of the daemon at `address`: the document, of any version of psd, and as read by this one.
Result<nlohmann::ordered_json> statusAt(const Address& address, const DaemonCall& call);
Result<DaemonStatus> readStatusAt(const Address& address, const DaemonCall& call);
inline constexpr std::string_view kStateMoved = "moved";  ///< DaemonStatus::state: its model has moved away

/// The address to call for each partition of the model. An Error if one of several does not answer.
Result<std::vector<Address>> allPrimaryAddresses(const DaemonCall& call);

/// Applies a change to all daemons that serve the model. Changes nothing unless all of them answer and, of
/// several, `mayChange(address)` accepts the change on each (null: no such check). `change(address)` returns
/// the text to print. The error of a change that fails midway says how many daemons have changed.
Status changeAll(const DaemonCall& call, const std::function<Result<std::string>(const Address&)>& change,
                 const std::function<Status(const Address&)>& mayChange = nullptr);

/// The outcome of a call, with what to do if nothing listens at any of the addresses. Blocks.
Status withAdvice(Status outcome, const DaemonCall& call);

/// The status; of a daemon with a standby, the primary's if it answers: the document, of any version of psd,
/// and as read by this one.
Result<nlohmann::ordered_json> statusOf(const DaemonCall& call);
Result<DaemonStatus> readStatusOf(const DaemonCall& call);

}  // namespace psd
