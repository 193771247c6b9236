#include "common/cli/usage_error.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "common/text/text.h"

namespace psd {
namespace {

/// The innermost subcommand that was chosen, or `app` itself.
const CLI::App& chosenOf(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return parsed.empty() ? app : chosenOf(*parsed.front());
}

/// Its full name, like "psd trainer remove".
std::string nameOf(const CLI::App& app, const CLI::App& command) {
  if (&app == &command || command.get_parent() == nullptr) return command.get_name();
  return nameOf(app, *command.get_parent()) + " " + command.get_name();
}

/// Collects the command and all commands below it.
void collect(const CLI::App& command, std::vector<const CLI::App*>& commands) {
  commands.push_back(&command);
  for (const CLI::App* below : command.get_subcommands({})) collect(*below, commands);
}

std::string optionOf(const CLI::App& app, const std::string& option, const CLI::App& command) {
  return option + ": is an option of '" + nameOf(app, command) + "', not of '" + nameOf(app, chosenOf(app)) +
         "'";
}

std::string belongsAfter(const CLI::App& app, const std::string& option) {
  return option + ": belongs after the command, as in '" + nameOf(app, chosenOf(app)) + " " + option + " …'";
}

std::string suggestion(std::string_view word, const std::vector<std::string>& names,
                       const std::string& otherwise) {
  const std::string_view near = nearest(word, {names.begin(), names.end()});
  return near.empty() ? otherwise : "did you mean " + std::string(near) + "?";
}

std::string wrongOption(const std::string& word, const CLI::App& app, const std::string& help) {
  const CLI::App& chosen = chosenOf(app);
  const std::string name = word.substr(0, word.find('='));
  if (name == "-v" || name == "-V" || name == "--version")
    return name + ": no such option; did you mean '" + app.get_name() + " --version'?";
  if (&chosen != &app && chosen.get_option_no_throw(name) != nullptr) return belongsAfter(app, name);
  std::vector<const CLI::App*> commands;
  collect(app, commands);
  for (const CLI::App* other : commands) {
    if (other == &chosen || other->get_option_no_throw(name) == nullptr) continue;
    return optionOf(app, name, *other);
  }
  std::vector<std::string> names;
  for (const CLI::Option* option : chosen.get_options()) {
    if (option->nonpositional()) names.push_back(option->get_name());
  }
  return printable(name) + ": no such option; " + suggestion(name, names, help);
}

/// The option whose value the word seems to be, and whose flag was left out; else empty.
std::string_view optionFor(const std::string& word, const CLI::App& command) {
  std::error_code ignored;
  const auto takes = [&](const char* option) { return command.get_option_no_throw(option) != nullptr; };
  if (takes("--server") && word.find("://") != std::string::npos) return "--server";
  if (takes("--config") && std::filesystem::is_regular_file(word, ignored)) return "--config";
  return "";
}

std::string wrongWord(const std::string& word, const CLI::App& app, const CommandHints& hints,
                      const std::string& help) {
  const CLI::App& chosen = chosenOf(app);
  const std::vector<const CLI::App*> commands = chosen.get_subcommands({});
  const std::string quoted = "'" + printable(word) + "'";
  const std::string none = commands.empty() ? " is not expected; " : ": no such command; ";
  if (const std::string_view option = optionFor(word, chosen); !option.empty()) {
    return quoted + none + "did you mean '" + nameOf(app, chosen) + " " + std::string(option) + " " +
           printable(word) + "'?";
  }
  if (commands.empty()) return quoted + none + help;
  std::vector<std::string> names;
  for (const CLI::App* command : commands) names.push_back(command->get_name());
  if (&chosen != &app) {
    return quoted + ": no such command of " + nameOf(app, chosen) + ", which has: " + joined(names, ", ");
  }
  if (word == "version") return quoted + none + "did you mean '" + app.get_name() + " --version'?";
  if (const auto hint = hints.find(word); hint != hints.end())
    return quoted + none + std::string(hint->second);
  return quoted + none + suggestion(word, names, help);
}

/// The example command in the footer of `command`; empty if it has no footer of its own.
std::string exampleOf(const CLI::App& command) {
  constexpr std::string_view kBegin = "Example: ";
  const std::string footer = command.get_footer();
  const CLI::App* const parent = command.get_parent();  // whose footer it inherits
  if (!footer.starts_with(kBegin) || (parent != nullptr && parent->get_footer() == footer)) return "";
  return footer.substr(kBegin.size(), footer.find('\n') - kBegin.size());
}

/// Rewrites CLI11's messages such as "--to is required" and "A subcommand is required".
std::string whatIsMissing(const std::string& what, const CLI::App& command) {
  constexpr std::string_view kEnd = " is required";
  std::string text = what;
  if (text.starts_with("A subcommand")) {
    text = "a command is missing";
  } else if (text.ends_with(kEnd)) {
    text = text.substr(0, text.size() - kEnd.size()) + " is missing";
  }
  const std::string example = exampleOf(command);
  return example.empty() ? text : text + ", as in '" + example + "'";
}

}  // namespace

Error usageError(const CLI::ParseError& error, const CLI::App& app, const CommandHints& hints) {
  const std::string help = "see " + nameOf(app, chosenOf(app)) + " --help";
  const std::vector<std::string> unknown = app.remaining(true);
  auto option = std::find_if(unknown.begin(), unknown.end(),
                             [](const std::string& word) { return word.starts_with('-'); });
  // The options of an unknown command are unknown as well: report the command.
  if (option != unknown.begin() && !chosenOf(app).get_subcommands({}).empty()) option = unknown.end();
  std::string message;
  if (option != unknown.end()) {
    message = wrongOption(*option, app, help);
  } else if (!unknown.empty()) {
    message = wrongWord(unknown.front(), app, hints, help);
  } else {
    std::string what = error.what();
    std::replace(what.begin(), what.end(), '\n', ' ');
    if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) what = whatIsMissing(what, chosenOf(app));
    message = printable(what, 500) + "; " + help;
  }
  return {ErrorCode::invalidArgument, message};
}

Status checkOptionsPlaced(const CLI::App& app) {
  const CLI::App& chosen = chosenOf(app);
  if (&chosen == &app) return {};
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0) continue;
    const std::string name = option->get_name();
    if (chosen.get_option_no_throw(name) == nullptr) {
      return {ErrorCode::invalidArgument, optionOf(app, name, app)};
    }
    return {ErrorCode::invalidArgument, belongsAfter(app, name)};
  }
  return {};
}

}  // namespace psd
