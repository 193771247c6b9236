#pragma once

#include <string>
#include <string_view>

namespace psd {

/// State of a JSON parser at a syntax error.
struct JsonFailure {
  size_t position = 0;      ///< bytes read so far, the wrong ones included
  std::string lastToken;    ///< the parser's last token, as in the text
  std::string parserText;   ///< the parser's own message
  bool emptySoFar = false;  ///< the innermost list or object is still empty
};

/// A human-readable message for a syntax error of nlohmann-json:
/// "line 3, column 5: expected ',' or '}', not '"lr"'".
std::string describeSyntaxError(std::string_view text, const JsonFailure& failure);

}  // namespace psd
