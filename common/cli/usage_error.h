#pragma once

#include <map>
#include <string_view>

#include <CLI/CLI.hpp>

#include "common/status/status.h"

namespace psd {

/// Hints for words that users try as commands but that do not exist.
using CommandHints = std::map<std::string_view, std::string_view>;

/// One line about CLI11's error for the command line of `app`. An unknown word is quoted, with the subcommand
/// that it belongs to or the nearest valid one, if any. For a missing part it shows the example command after
/// "Example: " at the beginning of the footer.
Error usageError(const CLI::ParseError& error, const CLI::App& app, const CommandHints& hints = {});

/// Rejects options of `app` itself that were given with a subcommand, which would ignore them.
Status checkOptionsPlaced(const CLI::App& app);

}  // namespace psd
