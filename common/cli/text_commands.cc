#include "common/cli/text_commands.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "common/cli/completion.h"
#include "common/cli/man_page.h"
#include "common/text/text.h"

namespace psd {
namespace {

constexpr size_t kColumnsMost = 100, kHelpColumn = 34;

/// Wraps a line at spaces, or at commas in a word that is too long; continuation lines start in the column of
/// the explanation.
std::string brokenLine(std::string line) {
  const size_t indent = line.find_first_not_of(' ');
  const size_t hanging = indent == std::string::npos ? 0 : indent == 2 ? kHelpColumn : indent;
  std::string out;
  while (line.size() > kColumnsMost) {
    size_t space = line.rfind(' ', kColumnsMost);
    size_t next = space + 1;
    if (space == std::string::npos || space <= hanging) {
      const size_t comma = line.rfind(',', kColumnsMost - 1);
      if (comma == std::string::npos || comma <= hanging) break;
      space = next = comma + 1;
    }
    out += line.substr(0, space) + "\n";
    line = std::string(hanging, ' ') + line.substr(next);
  }
  return out + line;
}

/// CLI11's help with lines that fit a terminal.
class NarrowHelp : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    const std::string wide = CLI::Formatter::make_help(app, std::move(name), mode);
    std::string out;
    for (size_t begin = 0; begin < wide.size();) {
      const size_t end = std::min(wide.find('\n', begin), wide.size());
      out += brokenLine(wide.substr(begin, end - begin)) + "\n";
      begin = end + 1;
    }
    return out;
  }
};

void setFormatter(CLI::App& app, const std::shared_ptr<CLI::FormatterBase>& formatter) {
  app.formatter(formatter);
  for (CLI::App* command : app.get_subcommands({})) setFormatter(*command, formatter);
}

}  // namespace

void groupOptions(CLI::App& app, const std::vector<OptionGroup>& groups) {
  for (const OptionGroup& group : groups) {
    for (const std::string& name : group.options) {
      if (CLI::Option* const option = app.get_option_no_throw(name)) option->group(group.title);
    }
  }
  for (CLI::App* command : app.get_subcommands({})) groupOptions(*command, groups);
}

TextCommands::TextCommands(CLI::App& app, std::function<CompletionWords()> words)
    : app_(app),
      words_(std::move(words)),
      help_(app.add_subcommand("help", "Explain the program or one of its commands, as --help does")),
      completion_(
          app.add_subcommand("completion", "Print a script that lets a shell complete command lines")),
      man_(app.add_subcommand("man", "Print the manual page, as roff")) {
  help_->add_option("command", commands_, "The command; default: the program")->type_name("COMMAND");
  completion_->add_option("shell", shell_, "bash, zsh or fish")->required()->type_name("SHELL");
  const std::string name = app.get_name();
  completion_->footer("bash:  source <(" + name + " completion bash)\nzsh:   source <(" + name +
                      " completion zsh)\nfish:  " + name + " completion fish | source\n");
  help_->footer("Example: " + name + " help " + app.get_subcommands({}).front()->get_name());
  man_->footer("Example: " + name + " man | man -l -");
  for (CLI::App* command : {help_, completion_, man_}) command->group("About " + name);
  const auto formatter = std::make_shared<NarrowHelp>();
  formatter->column_width(kHelpColumn);
  setFormatter(app, formatter);
}

std::optional<Result<std::string>> TextCommands::run() const {
  if (*help_) return help();
  if (*completion_) return completion();
  if (*man_) return Result<std::string>(manPage(app_));
  return std::nullopt;
}

Result<std::string> TextCommands::completion() const {
  CompletionWords words = words_();
  words.ofOption["shell"] = {"bash", "zsh", "fish"};
  for (const CLI::App* command : app_.get_subcommands({})) {
    words.ofOption["command"].push_back(command->get_name());
  }
  return completionScript(app_, shell_, words);
}

Result<std::string> TextCommands::help() const {
  const CLI::App* at = &app_;
  std::string name = app_.get_name();
  for (const std::string& word : commands_) {
    const auto commands = at->get_subcommands({});
    const auto next = std::find_if(commands.begin(), commands.end(),
                                   [&](const CLI::App* command) { return command->get_name() == word; });
    if (next == commands.end()) {
      return Error{ErrorCode::invalidArgument,
                   "'" + printable(word) + "': no such command; see " + name + " --help"};
    }
    at = *next;
    name += " " + word;
  }
  return app_.get_formatter()->make_help(at, name, CLI::AppFormatMode::Normal);
}

}  // namespace psd
