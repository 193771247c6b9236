#include "common/plan/same_rules.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/text/text.h"

namespace psd {
namespace {

constexpr size_t kLineMax = 200;  // shown bytes of a line from a peer

/// The first line of two texts in which they differ.
std::pair<std::string, std::string> firstDifference(std::string_view one, std::string_view other) {
  while (!one.empty() || !other.empty()) {
    const std::string_view line = one.substr(0, one.find('\n')), next = other.substr(0, other.find('\n'));
    if (line != next) return {std::string(line), std::string(next)};
    one.remove_prefix(std::min(one.size(), line.size() + 1));
    other.remove_prefix(std::min(other.size(), next.size() + 1));
  }
  return {};
}

std::string shown(const std::string& line) {
  return line.empty() ? "no such key" : printable(line, kLineMax);
}

}  // namespace

Status checkSameRules(const NamedRules& one, const NamedRules& other) {
  if (one.text == other.text) return {};
  const auto [first, second] = firstDifference(one.text, other.text);
  return {
      ErrorCode::invalidArgument,
      fmt::format("daemons that serve a model together must have the same settings, but {} has {}, {} has {}",
                  one.name, shown(first), other.name, shown(second))};
}

}  // namespace psd
