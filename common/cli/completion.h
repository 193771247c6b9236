#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "common/cli/command_tree.h"
#include "common/status/status.h"

namespace psd {

/// A completion script for a shell ("bash", "zsh" or "fish") for the command line of `app`.
Result<std::string> completionScript(const CLI::App& app, const std::string& shell,
                                     const CompletionWords& words);

}  // namespace psd
