#pragma once

#include <cstdint>
#include <span>

#include "common/status/status.h"
#include "trainer/cli/command.h"
#include "trainer/cli/environment.h"

namespace psd {

#ifdef PSD_LEAN
inline constexpr bool kLean = true;
#else
inline constexpr bool kLean = false;
#endif

/// Parses the command line and, for flags that are not given, the environment. Each error is one line that
/// names the flag or variable. `cores`: number of CPU cores. `lean`: the commands and flags that PSD_LEAN
/// omits do not exist. Pure.
Result<Command> parseCommandLine(std::span<const char* const> arguments, const EnvironmentGetter& environment,
                                 uint32_t cores, bool lean = kLean);

}  // namespace psd
