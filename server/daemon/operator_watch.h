#pragma once

#include <cstdint>

#include "server/daemon/daemon_calls.h"

namespace psd {

/// The subcommands that go on looking at a daemon. On a terminal each look takes the place of the one before;
/// elsewhere it is plain text below it. They block until `looks` (0: no bound) are made or the daemon does
/// not answer.

/// `psd top`: what the daemon does, each second.
Status topOf(const DaemonCall& call, uint64_t looks);
/// `psd status --watch`: the table of psd status, each second.
Status watchStatus(const DaemonCall& call, uint64_t looks);
/// `psd events`: what happened; `follow`: and then what happens, until the daemon is gone. `json`: one object
/// a line.
Status printEvents(const DaemonCall& call, bool follow, bool json);

}  // namespace psd
