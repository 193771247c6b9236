#pragma once

#include <map>
#include <string_view>

#include <CLI/CLI.hpp>

#include "common/status/status.h"

namespace psd {

/// What to say of words in a command's place that people try and that there are not.
using CommandHints = std::map<std::string_view, std::string_view>;

/// One line for what CLI11 found wrong with a command line that `app` was to parse. A word that there is not
/// is named, with the subcommand that it goes with or the nearest right one, where there is one. What is
/// missing comes with the command after "Example: " at the beginning of the footer.
Error usageError(const CLI::ParseError& error, const CLI::App& app, const CommandHints& hints = {});

/// Refuses options of `app` itself that were given with a subcommand, which would pass them over.
Status checkOptionsPlaced(const CLI::App& app);

}  // namespace psd
