#pragma once

#include <string>
#include <string_view>

namespace psd {

/// State of a JSON parser at its syntax error.
struct JsonFailure {
  size_t position = 0;      ///< bytes read so far, the offending ones included
  std::string lastToken;    ///< the parser's last token as written in the text
  std::string parserText;   ///< the parser's own message
  bool emptySoFar = false;  ///< the innermost list or object is empty so far
};

/// Translates nlohmann-json's description of a syntax error into a human-readable one: "line 3, column 5:
/// expected ',' or '}', not '"lr"'".
std::string describeSyntaxError(std::string_view text, const JsonFailure& failure);

}  // namespace psd
