#pragma once

#include <string>
#include <vector>

namespace psd {

/// Re-executes this program in this process (same PID, no state kept) with its original arguments, but
/// listening on these addresses. `pages`: HTTP addresses; empty: no page. Exits with status 1 if exec fails.
/// The new program detects the restart with wasRestarted().
[[noreturn]] void restartProcess(const std::vector<std::string>& addresses,
                                 const std::vector<std::string>& pages);

/// Whether this program was started by restartProcess().
bool wasRestarted();

/// The command line that restartProcess() uses: `before` without the flags that name addresses, then these.
std::vector<std::string> restartArguments(const std::vector<std::string>& before,
                                          const std::vector<std::string>& addresses,
                                          const std::vector<std::string>& pages);

}  // namespace psd
