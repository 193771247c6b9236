#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "common/config/config_reader.h"

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

/// The entries of a visible list as alternatives of a configuration.
template <class List>
std::vector<Alternative> alternativesOf(const List& list) {
  std::vector<Alternative> all;
  for (const auto& entry : list) all.push_back({entry.type, entry.summary});
  return all;
}

}  // namespace psd
