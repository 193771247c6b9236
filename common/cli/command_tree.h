#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace psd {

/// Words offered by completion beside commands and options. A value type.
struct CompletionWords {
  std::map<std::string, std::vector<std::string>> ofOption;  ///< by "--device", or a positional's name
  std::map<std::string, std::vector<std::string>> ofKey;     ///< after "KEY=": by "policy.type"
  std::set<std::string> paths{};                             ///< options that take these words or a path
};

/// A program or one of its commands. A value type; `app` outlives it.
struct CommandNode {
  std::string path;  ///< "" for the program, else "/status", "/token/new"
  const CLI::App* app = nullptr;

  /// As typed: "psd token new".
  std::string words(const std::string& program) const;
};

/// The program, then its commands in order, each before its subcommands.
std::vector<CommandNode> commandTree(const CLI::App& app);

/// All spellings of the option: "-h", "--help".
std::vector<std::string> spellings(const CLI::Option& option);
/// Whether the next word is its value.
bool takesValue(const CLI::Option& option);
/// Whether its value is a path.
bool takesPath(const CLI::Option& option);
/// "--server ADDRESS", for help and manual.
std::string shownName(const CLI::Option& option);

}  // namespace psd
