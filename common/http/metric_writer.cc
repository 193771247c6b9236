#include "common/http/metric_writer.h"

namespace psd {
namespace {

/// Escapes a label's value as the format requires.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

void MetricWriter::begin(std::string name, Type type, std::string_view help) {
  name_ = std::move(name);
  constexpr std::string_view kTypes[] = {"counter", "gauge", "histogram"};
  std::string text(help);  // backquotes are for documentation pages
  std::erase(text, '`');
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 'a' + 'A');
  std::string line;
  for (const char c : text) line += c == '\\' ? "\\\\" : std::string(1, c);
  out_ += fmt::format("# HELP {0} {1}.\n# TYPE {0} {2}\n", name_, line, kTypes[static_cast<size_t>(type)]);
}

void MetricWriter::beginSample(Labels labels, std::string_view suffix) {
  out_ += name_;
  out_ += suffix;
  char before = '{';
  for (const auto& [label, text] : labels) {
    out_ += fmt::format("{}{}=\"{}\"", before, label, escaped(text));
    before = ',';
  }
  if (labels.size() > 0) out_ += '}';
}

}  // namespace psd
