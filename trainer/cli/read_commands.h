#pragma once

#include <cstdint>

#include <CLI/CLI.hpp>

#include "common/status/status.h"
#include "trainer/cli/command.h"
#include "trainer/cli/command_flags.h"
#include "trainer/cli/environment.h"

namespace psd {

// Read the flags of one command, and the environment for flags that are not given. Each error is one line
// that names the flag or variable. Pure.

Result<Command> readTrain(const RawFlags& flags, const EnvironmentGetter& environment, uint32_t cores);
Result<Command> readEval(const RawFlags& flags, const EnvironmentGetter& environment, uint32_t cores);
Result<Command> readSimulate(const RawFlags& flags, const EnvironmentGetter& environment, uint32_t cores);
Result<Command> readBridge(const RawFlags& flags, const EnvironmentGetter& environment);
/// `app`: the command, which knows the flags that were given.
Result<Command> readBench(const CLI::App& app, const RawFlags& flags, const EnvironmentGetter& environment,
                          uint32_t cores);

}  // namespace psd
