#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace psd {

/// The manual page (section 1) of the program whose command line is `app`, as roff.
std::string manPage(const CLI::App& app);

}  // namespace psd
