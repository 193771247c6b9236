#include "common/cli/completion.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/text/text.h"

namespace psd {
namespace {

std::string quotedWord(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

/// "_psd_trainer"
std::string functionName(const std::string& program) {
  std::string name = "_" + program;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::vector<std::string> wordsOf(const CLI::Option& option, const CompletionWords& words) {
  const auto found = words.ofOption.find(option.nonpositional() ? option.get_name() : option.get_name(true));
  return found == words.ofOption.end() ? std::vector<std::string>() : found->second;
}

bool offersFiles(const CLI::Option& option, const CompletionWords& words) {
  return takesPath(option) || words.paths.contains(option.get_name());
}

/// The patterns "AT --option" of the options that take the next word as value.
std::vector<std::string> valuePatterns(const CommandNode& node) {
  std::vector<std::string> out;
  for (const CLI::Option* option : node.app->get_options()) {
    if (!takesValue(*option)) continue;
    for (const std::string& name : spellings(*option)) out.push_back(quotedWord(node.path + " " + name));
  }
  return out;
}

/// Lines of a case statement over "$at WORD" that determines the current command.
std::string commandCases(const std::vector<CommandNode>& tree) {
  std::string out;
  for (const CommandNode& node : tree) {
    const auto values = valuePatterns(node);
    if (!values.empty()) out += fmt::format("      {}) i=$((i + 1)) ;;\n", joined(values, "|"));
    for (const CLI::App* command : node.app->get_subcommands({})) {
      out += fmt::format("      {}) at={} ;;\n", quotedWord(node.path + " " + command->get_name()),
                         quotedWord(node.path + "/" + command->get_name()));
    }
  }
  return out;
}

/// Lines of a case statement over "$at $prev": the values of an option.
std::string valueCases(const std::vector<CommandNode>& tree, const CompletionWords& words) {
  std::string out;
  for (const CommandNode& node : tree) {
    for (const CLI::Option* option : node.app->get_options()) {
      if (!takesValue(*option) || !option->nonpositional()) continue;
      std::vector<std::string> patterns;
      for (const std::string& name : spellings(*option))
        patterns.push_back(quotedWord(node.path + " " + name));
      const std::string choices = joined(wordsOf(*option, words), " ");
      out += fmt::format("    {}) choices={}{} ;;\n", joined(patterns, "|"), quotedWord(choices),
                         offersFiles(*option, words) ? " files=1" : "");
    }
  }
  return out;
}

/// Lines of a case statement over "$at": commands, options and positionals.
std::string wordCases(const std::vector<CommandNode>& tree, const CompletionWords& words) {
  std::string out;
  for (const CommandNode& node : tree) {
    std::vector<std::string> choices;
    bool files = false;
    for (const CLI::App* command : node.app->get_subcommands({})) choices.push_back(command->get_name());
    for (const CLI::Option* option : node.app->get_options()) {
      for (std::string& name : spellings(*option)) choices.push_back(std::move(name));
      if (!option->get_positional()) continue;
      files = files || offersFiles(*option, words);
      for (std::string& word : wordsOf(*option, words)) choices.push_back(std::move(word));
    }
    out += fmt::format("      {}) choices={}{} ;;\n", quotedWord(node.path), quotedWord(joined(choices, " ")),
                       files ? " files=1" : "");
  }
  return out;
}

/// Lines of a case statement over "$key": the values after "KEY=".
std::string keyCases(const CompletionWords& words) {
  std::string out;
  for (const auto* lists : {&words.ofKey, &words.ofOption}) {
    for (const auto& [key, choices] : *lists) {
      out += fmt::format("    {}) choices={} ;;\n", quotedWord(key), quotedWord(joined(choices, " ")));
    }
  }
  return out;
}

/// The common part of bash and zsh, once cur, prev, key and the previous words, `WORD` of each `i`, are
/// known.
std::string shellBody(const std::vector<CommandNode>& tree, const CompletionWords& words,
                      std::string_view begin, std::string_view end, std::string_view word) {
  return fmt::format(
      "  for ((i = {}; i < {}; i++)); do\n    case \"$at {}\" in\n{}    esac\n  done\n"
      "  if [[ -n $key ]]; then\n    case \"$key\" in\n{}    esac\n  else\n    case \"$at $prev\" in\n{}"
      "    *)\n    case \"$at\" in\n{}    esac ;;\n    esac\n  fi\n",
      begin, end, word, commandCases(tree), keyCases(words), valueCases(tree, words), wordCases(tree, words));
}

std::string bashScript(const std::string& program, const std::vector<CommandNode>& tree,
                       const CompletionWords& words) {
  const std::string name = functionName(program);
  std::string out =
      fmt::format("# bash completion for {0}, as `{0} completion bash` prints it\n{1}() {{\n", program, name);
  out +=
      "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} at='' key='' choices='' "
      "files='' i\n"
      "  if [[ $cur == '=' ]]; then\n    key=$prev cur=''\n"
      "  elif [[ $prev == '=' ]]; then\n    key=${COMP_WORDS[COMP_CWORD-2]}\n  fi\n";
  out += shellBody(tree, words, "1", "COMP_CWORD", "${COMP_WORDS[i]}");
  out +=
      "  mapfile -t COMPREPLY < <(compgen -W \"$choices\" -- \"$cur\")\n"
      "  if [[ -n $files && $cur != -* ]]; then\n"
      "    mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- \"$cur\")\n"
      "    compopt -o filenames 2>/dev/null\n  fi\n"
      "  if [[ ${COMPREPLY[*]} == *= ]]; then\n    compopt -o nospace 2>/dev/null\n  fi\n}\n";
  return out + fmt::format("complete -F {} {}\n", name, program);
}

std::string zshScript(const std::string& program, const std::vector<CommandNode>& tree,
                      const CompletionWords& words) {
  const std::string name = functionName(program);
  std::string out =
      fmt::format("#compdef {0}\n# as `{0} completion zsh` prints it\n{1}() {{\n", program, name);
  out +=
      "  local cur=${words[CURRENT]} prev=${words[CURRENT-1]} at='' key='' choices='' files='' i\n"
      "  if [[ $cur == *=* ]]; then\n    key=${cur%%=*}\n    compset -P '*='\n  fi\n";
  out += shellBody(tree, words, "2", "CURRENT", "${words[i]}");
  out += "  compadd -- ${=choices}\n  if [[ -n $files && $cur != -* ]]; then\n    _files\n  fi\n}\n";
  return out +
         fmt::format("if [[ ${{funcstack[1]}} == {0} ]]; then\n  {0} \"$@\"\nelse\n  compdef {0} {1}\nfi\n",
                     name, program);
}

/// Quotes a word for fish.
std::string fishWord(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' || c == '\\' ? std::string{'\\', c} : std::string(1, c);
  return out + "'";
}

/// The words of an option, with the values of keys that have choices: fish completes KEY=VALUE as one word.
std::string fishChoices(const CLI::Option& option, const CompletionWords& words) {
  std::vector<std::string> choices;
  for (std::string& word : wordsOf(option, words)) {
    const auto key =
        word.ends_with('=') ? words.ofKey.find(word.substr(0, word.size() - 1)) : words.ofKey.end();
    if (key == words.ofKey.end()) {
      choices.push_back(std::move(word));
    } else {
      for (const std::string& value : key->second) choices.push_back(word + value);
    }
  }
  return joined(choices, " ");
}

std::string fishScript(const std::string& program, const std::vector<CommandNode>& tree,
                       const CompletionWords& words) {
  const std::string at = "_" + functionName(program) + "_at";
  std::string out = fmt::format(
      "# fish completion for {0}, as `{0} completion fish` prints it\nfunction {1}\n", program, at);
  out +=
      "  set -l at ''\n  set -l skip 0\n  for word in (commandline -opc)[2..-1]\n"
      "    if test $skip = 1\n      set skip 0\n      continue\n    end\n    switch \"$at $word\"\n";
  for (const CommandNode& node : tree) {
    const auto values = valuePatterns(node);
    if (!values.empty()) out += fmt::format("      case {}\n        set skip 1\n", joined(values, " "));
    for (const CLI::App* command : node.app->get_subcommands({})) {
      out += fmt::format("      case '{0} {1}'\n        set at '{0}/{1}'\n", node.path, command->get_name());
    }
  }
  out += fmt::format("    end\n  end\n  echo \"at:$at\"\nend\ncomplete -c {} -f\n", program);
  for (const CommandNode& node : tree) {
    const std::string line = fmt::format("complete -c {} -n 'test ({}) = \"at:{}\"'", program, at, node.path);
    for (const CLI::App* command : node.app->get_subcommands({})) {
      out += fmt::format("{} -a {} -d {}\n", line, command->get_name(), fishWord(command->get_description()));
    }
    for (const CLI::Option* option : node.app->get_options()) {
      const std::string choices = fishChoices(*option, words);
      if (!option->nonpositional()) {
        if (offersFiles(*option, words)) out += line + " -F\n";
        if (!choices.empty()) out += fmt::format("{} -a {}\n", line, fishWord(choices));
        continue;
      }
      out += line;
      for (const std::string& name : option->get_snames()) out += " -s " + name;
      for (const std::string& name : option->get_lnames()) out += " -l " + name;
      if (takesValue(*option)) out += offersFiles(*option, words) ? " -r -F" : " -x";
      if (!choices.empty()) out += " -a " + fishWord(choices);
      out += " -d " + fishWord(option->get_description()) + "\n";
    }
  }
  return out;
}

}  // namespace

Result<std::string> completionScript(const CLI::App& app, const std::string& shell,
                                     const CompletionWords& words) {
  const std::vector<CommandNode> tree = commandTree(app);
  if (shell == "bash") return bashScript(app.get_name(), tree, words);
  if (shell == "zsh") return zshScript(app.get_name(), tree, words);
  if (shell == "fish") return fishScript(app.get_name(), tree, words);
  return Error{ErrorCode::invalidArgument,
               "completion: '" + printable(shell) + "' is not a supported shell; expected bash, zsh or fish"};
}

}  // namespace psd
