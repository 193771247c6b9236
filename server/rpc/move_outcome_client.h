#pragma once

#include <chrono>

#include "common/auth/credentials.h"
#include "common/status/status.h"
#include "server/move/move_mark.h"
#include "server/move/move_outcome.h"

namespace psd {

/// Asks the lead of the daemons that had a model what became of the move with that number, at each of its
/// addresses, within that time for all; shows no token. Blocks, and must not be called on a thread that runs
/// an event loop.
Result<MoveOutcome> askMoveOutcome(const MoveLead& lead, uint64_t move, const TlsFiles& tls,
                                   std::chrono::milliseconds timeout);

}  // namespace psd
