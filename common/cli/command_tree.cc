#include "common/cli/command_tree.h"

#include <algorithm>

namespace psd {
namespace {

void addNodes(const CLI::App& app, const std::string& path, std::vector<CommandNode>& out) {
  out.push_back({path, &app});
  for (const CLI::App* command : app.get_subcommands({})) {
    addNodes(*command, path + "/" + command->get_name(), out);
  }
}

}  // namespace

std::string CommandNode::words(const std::string& program) const {
  std::string text = program + path;
  std::replace(text.begin(), text.end(), '/', ' ');
  return text;
}

std::vector<CommandNode> commandTree(const CLI::App& app) {
  std::vector<CommandNode> out;
  addNodes(app, "", out);
  return out;
}

std::vector<std::string> spellings(const CLI::Option& option) {
  std::vector<std::string> out;
  for (const std::string& name : option.get_snames()) out.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) out.push_back("--" + name);
  return out;
}

bool takesValue(const CLI::Option& option) { return option.get_items_expected_min() > 0; }

bool takesPath(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return type == "FILE" || type == "PATH" || type == "FOLDER" || type == "FOLDER..." || type == "DIR";
}

std::string shownName(const CLI::Option& option) {
  std::string text;
  for (const std::string& name : spellings(option)) text += (text.empty() ? "" : ", ") + name;
  if (text.empty()) text = option.get_name(true);
  if (option.get_items_expected_max() > 0 && option.nonpositional()) text += " " + option.get_type_name();
  return text;
}

}  // namespace psd
