#pragma once

#include <string>
#include <string_view>

namespace psd {

/// What a JSON parser knew when it gave up.
struct JsonFailure {
  size_t position = 0;      ///< bytes read so far, the offending ones included
  std::string lastToken;    ///< the parser's last token as it stands in the text
  std::string parserText;   ///< the parser's own message
  bool emptySoFar = false;  ///< the innermost list or object holds nothing yet
};

/// Turns nlohmann-json's account of a syntax error into one for people:
/// "line 3, column 5: expected ',' or '}', not '"lr"'".
std::string describeSyntaxError(std::string_view text, const JsonFailure& failure);

}  // namespace psd
