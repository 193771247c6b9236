#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "common/cli/command_tree.h"
#include "common/status/status.h"

namespace psd {

/// A script that lets a shell ("bash", "zsh" or "fish") complete the command lines that `app` reads.
Result<std::string> completionScript(const CLI::App& app, const std::string& shell,
                                     const CompletionWords& words);

}  // namespace psd
