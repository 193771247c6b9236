#include "common/cli/man_page.h"

#include <algorithm>
#include <cctype>

#include "common/cli/command_tree.h"

namespace psd {
namespace {

/// Escapes text for roff.
std::string plain(const std::string& text) {
  std::string out;
  bool lineBegins = true;
  for (const char c : text) {
    if (lineBegins && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
    lineBegins = c == '\n';
  }
  return out;
}

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

std::string options(const CLI::App& app) {
  std::string out;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    out += ".TP\n.B " + plain(shownName(*option)) + "\n" + plain(option->get_description());
    const std::string initial = option->get_default_str();
    if (!initial.empty()) out += "; default: " + plain(initial);
    if (!option->get_envname().empty()) out += " [" + plain(option->get_envname()) + "]";
    out += "\n";
  }
  return out;
}

/// A preformatted block.
std::string asWritten(const std::string& text) {
  return text.empty() ? "" : ".PP\n.nf\n" + plain(text) + "\n.fi\n";
}

std::string synopsis(const CommandNode& node, const std::string& program) {
  std::string out = ".B " + plain(node.words(program)) + "\n.RI [ options ]";
  for (const CLI::Option* option : node.app->get_options()) {
    if (option->get_positional()) out += "\n.RI [ " + plain(option->get_name(true)) + " ]";
  }
  return out + "\n";
}

}  // namespace

std::string manPage(const CLI::App& app) {
  const std::string program = app.get_name();
  std::string out = ".TH " + upper(program) +
                    " 1 \"\" \"psd " PSD_VERSION "\" \"User Commands\"\n.SH NAME\n" + plain(program) +
                    " \\- " + plain(app.get_description()) + "\n.SH SYNOPSIS\n";
  const std::vector<CommandNode> tree = commandTree(app);
  for (const CommandNode& node : tree)
    out += synopsis(node, program) + (&node == &tree.back() ? "" : ".br\n");
  out += ".SH OPTIONS\n" + options(app);
  out += ".SH COMMANDS\n";
  for (const CommandNode& node : tree) {
    if (node.path.empty()) continue;
    out += ".SS " + plain(node.words(program)) + "\n" + plain(node.app->get_description()) + ".\n" +
           options(*node.app) + asWritten(node.app->get_footer());
  }
  if (!app.get_footer().empty()) out += ".SH EXAMPLES AND DOCUMENTATION\n" + asWritten(app.get_footer());
  return out;
}

}  // namespace psd
