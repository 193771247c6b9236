#pragma once

#include <cstdint>

#include "server/daemon/daemon_calls.h"

namespace psd {

// The subcommands that go on looking at the daemons that serve a model, or with `here` at the one that is
// called alone.

/// How often a look is taken, and at whom. A value type.
struct Looks {
  uint64_t most = 0;  ///< 0: no bound
  bool here = false;
};

/// `psd top`: what each daemon does, each second. On a terminal each look takes the place of the one before;
/// elsewhere it is plain text below it. Blocks until the looks are made or no daemon answers; an Error
/// too where one was missing in the last look.
Status topOf(const DaemonCall& call, const Looks& looks);
/// `psd status --watch`: the table of psd status, likewise.
Status watchStatus(const DaemonCall& call, const Looks& looks);

/// What `psd events` prints. A value type.
struct EventsWanted {
  bool follow = false;  ///< and then what happens, until the daemons are gone
  bool json = false;    ///< one object a line
  bool here = false;
};
/// `psd events`: what happened, of several daemons in the order of time.
Status printEvents(const DaemonCall& call, const EventsWanted& wanted);

}  // namespace psd
