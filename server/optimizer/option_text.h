#pragma once

#include <charconv>
#include <string>

namespace psd {

/// The shortest decimal text that parses back to `value`.
inline std::string numberText(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return std::string(text, end);
}

}  // namespace psd
