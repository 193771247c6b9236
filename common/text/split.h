#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace psd {

/// Splits at commas; keeps empty parts.
inline std::vector<std::string> splitAtCommas(std::string_view text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size(); begin += parts.back().size() + 1) {
    parts.emplace_back(text.substr(begin, std::min(text.find(',', begin), text.size()) - begin));
  }
  return parts;
}

}  // namespace psd
