#pragma once

#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "common/cli/command_tree.h"
#include "common/status/status.h"

namespace psd {

/// Options that help shows together, under a title. A value type.
struct OptionGroup {
  std::string title;
  std::vector<std::string> options;  ///< "--server"; of whatever command has it
};

/// Puts the options of the program and all its commands into those groups; others stay where they are.
void groupOptions(CLI::App& app, const std::vector<OptionGroup>& groups);

/// The commands that print texts about the program itself: `help`, `completion` and `man`. Made when all
/// others are there; from then on help has lines of at most 100 characters. Owned by one thread; `app`
/// outlives it.
class TextCommands {
 public:
  TextCommands(CLI::App& app, CompletionWords words);

  /// The text that was asked for; nothing when the chosen command is none of these.
  std::optional<Result<std::string>> run() const;

 private:
  Result<std::string> help() const;

  CLI::App& app_;
  CompletionWords words_;
  std::vector<std::string> commands_;
  std::string shell_;
  CLI::App *help_, *completion_, *man_;
};

}  // namespace psd
