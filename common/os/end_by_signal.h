#pragma once

namespace psd {

/// Makes SIGINT, SIGTERM, SIGHUP and SIGQUIT end the process as by default, also for process 1 of a
/// container, for which the kernel has no default action: it exits with 128 + N. An ignored signal stays
/// ignored. Call it first in main(); code that handles signals installs its own handlers later.
void endBySignals();

/// Ends the process by the signal. Async-signal-safe.
[[noreturn]] void endBySignal(int signal);

}  // namespace psd
