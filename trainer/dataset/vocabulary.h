#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/status/status.h"

namespace psd {

/// What a text is cut into.
enum class TextLevel { word, character };

/// Cuts a UTF-8 text into tokens. Views into `text`; but words are in lower case, so it is changed.
///
/// word: runs of letters, digits and apostrophes, A to Z made small; each other visible character; each end
/// of a line ("\n"). Whatever is beyond ASCII counts as a letter, but for U+0080 to U+00BF, U+2000 to U+206F
/// and U+3000 to U+303F, where spaces and marks are: each of those is a token by itself. character: each code
/// point as it is.
///
/// The error (io) tells the first byte that is no UTF-8.
Result<std::vector<std::string_view>> cutText(std::string& text, TextLevel level);

/// The numbers of the commonest tokens of a text, which outlives it. Immutable.
class Vocabulary {
 public:
  static constexpr uint32_t kUnknown = 0;  ///< of every token that has no number of its own

  /// At most `size` (>= 1) numbers: 0, and from 1 on the commonest tokens, of equally common ones the lesser
  /// in the order of bytes.
  Vocabulary(const std::vector<std::string_view>& tokens, uint32_t size);

  /// All numbers are below it.
  uint32_t size() const { return static_cast<uint32_t>(numbers_.size()) + 1; }
  uint32_t numberOf(std::string_view token) const;

 private:
  std::unordered_map<std::string_view, uint32_t> numbers_;
};

}  // namespace psd
