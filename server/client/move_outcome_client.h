#pragma once

#include <chrono>

#include "common/auth/credentials.h"
#include "common/status/status.h"
#include "server/serving/move_record.h"

namespace psd {

/// Asks the lead of the source daemons for the outcome of move number `move`, trying each of its addresses
/// within `timeout` in total. Sends no token. Blocks; must not be called on a thread that runs an event loop.
Result<MoveOutcome> askMoveOutcome(const MoveLead& lead, uint64_t move, const TlsFiles& tls,
                                   std::chrono::milliseconds timeout);

}  // namespace psd
