#pragma once

#include <map>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace psd {

/// Words that completion offers beside commands and options. A value type.
struct CompletionWords {
  std::map<std::string, std::vector<std::string>> ofOption;  ///< by "--device", or a positional's name
  std::map<std::string, std::vector<std::string>> ofKey;     ///< after "KEY=": by "policy.type"
};

/// A program or one of its commands. A value type; `app` outlives it.
struct CommandNode {
  std::string path;  ///< "" of the program, else "/status", "/token/new"
  const CLI::App* app = nullptr;

  /// As it is typed: "psd token new".
  std::string words(const std::string& program) const;
};

/// The program, then its commands in their order, each before its own.
std::vector<CommandNode> commandTree(const CLI::App& app);

/// What is written for the option: "-h", "--help".
std::vector<std::string> spellings(const CLI::Option& option);
/// True if the word after it is its value.
bool takesValue(const CLI::Option& option);
/// True if its value is a path.
bool takesPath(const CLI::Option& option);
/// "--server ADDRESS", as help and manual show it.
std::string shownName(const CLI::Option& option);

}  // namespace psd
