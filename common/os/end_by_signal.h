#pragma once

namespace psd {

/// Lets SIGINT, SIGTERM, SIGHUP and SIGQUIT end the process as they do by default, also where it is process 1
/// of a container, for which the kernel has no default action: there it exits with 128 + N. A signal that is
/// ignored stays ignored. Comes first in main(); what waits for signals installs its own handlers later.
void endBySignals();

/// Ends the process by the signal. Async-signal-safe.
[[noreturn]] void endBySignal(int signal);

}  // namespace psd
