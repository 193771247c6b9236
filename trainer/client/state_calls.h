#pragma once

#include <set>
#include <string>
#include <vector>

#include <kj/async.h>

#include "trainer/client/api/optimizer_state.h"
#include "trainer/client/transport/daemon_connection.h"
#include "trainer/client/transport/session_terms.h"

namespace psd {

// The calls of a joined trainer about the state of the daemon's optimizer. `connection` and `terms` outlive
// the promises.

kj::Promise<Result<OptimizerState>> fetchState(DaemonConnection& connection, const SessionTerms& terms);

/// Sends values and state, whose arrays must stay valid, to the daemon, which applies them by applyState().
/// Returns the names of the states that its optimizer has. ErrorCode::invalidArgument if one of them is
/// missing.
kj::Promise<Result<std::set<std::string>>> sendState(DaemonConnection& connection, const SessionTerms& terms,
                                                     const StateToRestore& state);
/// ErrorCode::invalidArgument if `state` has a state that none of the daemons' optimizers has; `names`: what
/// these have.
Status checkStates(const StateToRestore& state, const std::set<std::string>& names);
kj::Promise<Status> applyState(DaemonConnection& connection, const std::vector<uint64_t>& steps);

}  // namespace psd
