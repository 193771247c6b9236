#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "common/cli/command_tree.h"
#include "common/status/status.h"

namespace psd {

/// Options that help shows together under a title. A value type.
struct OptionGroup {
  std::string title;
  std::vector<std::string> options;  ///< "--server"; of every command that has it
};

/// Assigns the options of the program and all its commands to these groups; others are unchanged.
void groupOptions(CLI::App& app, const std::vector<OptionGroup>& groups);

/// The commands that print texts about the program itself: `help`, `completion` and `man`. Constructed after
/// all other commands; limits the lines of help to 100 characters. Owned by one thread; `app` outlives it.
class TextCommands {
 public:
  /// `words` is called where a script is asked for.
  TextCommands(CLI::App& app, std::function<CompletionWords()> words);

  /// The requested text; empty if the chosen command is none of these.
  std::optional<Result<std::string>> run() const;

 private:
  Result<std::string> help() const;
  Result<std::string> completion() const;

  CLI::App& app_;
  const std::function<CompletionWords()> words_;
  std::vector<std::string> commands_;
  std::string shell_;
  CLI::App *help_, *completion_, *man_;
};

}  // namespace psd
