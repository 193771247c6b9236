#pragma once

#include <algorithm>
#include <string>

namespace psd {

/// Formats the entries of a list, one per line: `type` and `summary`.
template <class List>
std::string helpOf(const List& list) {
  size_t widest = 0;
  for (const auto& entry : list) widest = std::max(widest, entry.type.size());
  std::string text;
  for (const auto& entry : list) {
    text += "  " + std::string(entry.type) + std::string(widest + 2 - entry.type.size(), ' ') +
            std::string(entry.summary) + "\n";
  }
  return text;
}

}  // namespace psd
