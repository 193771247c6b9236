#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace psd {

/// The manual page of section 1 for the program that `app` reads the command line of, as roff.
std::string manPage(const CLI::App& app);

}  // namespace psd
