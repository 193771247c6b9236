#pragma once

#include <cstdint>
#include <string>

#include "server/tools/daemon_calls.h"

namespace psd {

// The subcommands that watch the daemons that serve a model, or with `here` only the called daemon.

/// How many refreshes to show, and of which daemons. A value type.
struct WatchOptions {
  uint64_t refreshesMax = 0;  ///< refreshes; 0: no limit
  bool here = false;
  std::string sort = "rank";  ///< of watchTop(): TopView::sort
};

/// `psd top`: the activity of each daemon, refreshed every second. On a terminal each refresh replaces the
/// previous one, within the terminal's size; elsewhere it is appended as plain text. Blocks until the
/// refreshes are done or no daemon answers. Also an Error if a daemon was missing from the last refresh.
Status watchTop(const DaemonCall& call, const WatchOptions& options);
/// `psd status --watch`: like watchTop(), with the table of psd status.
Status watchStatus(const DaemonCall& call, const WatchOptions& options);

/// Options of `psd events`. A value type.
struct EventsOptions {
  bool follow = false;  ///< also print new events, until the daemons end
  bool json = false;    ///< one object per line
  bool here = false;
};
/// `psd events`: prints the events that the daemons keep, ordered by time across daemons.
Status printEvents(const DaemonCall& call, const EventsOptions& wanted);

}  // namespace psd
