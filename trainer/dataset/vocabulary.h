#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/status/status.h"

namespace psd {

/// Unit of a token.
enum class TextLevel { word, character };

/// Cuts a UTF-8 text into tokens, which are views into `text`. Modifies `text`: words are converted to lower
/// case.
///
/// word: runs of letters, digits and apostrophes, with A to Z in lower case; each other visible character;
/// each line end ("\n"). Non-ASCII characters count as letters, except U+0080 to U+00BF, U+2000 to U+206F
/// and U+3000 to U+303F (spaces and punctuation), each of which is a token of its own. character: each code
/// point unchanged.
///
/// The error (io) gives the offset of the first byte that is not UTF-8.
Result<std::vector<std::string_view>> cutText(std::string& text, TextLevel level);

/// Numbers the most frequent tokens of a text, which outlives it. Immutable.
class Vocabulary {
 public:
  static constexpr uint32_t kUnknown = 0;  ///< number of every token outside the vocabulary

  /// At most `size` (>= 1) numbers: 0, and from 1 on the tokens by descending frequency; ties in byte order.
  Vocabulary(const std::vector<std::string_view>& tokens, uint32_t size);

  /// Exclusive upper bound of the numbers.
  uint32_t size() const { return static_cast<uint32_t>(numbers_.size()) + 1; }
  uint32_t numberOf(std::string_view token) const;

 private:
  std::unordered_map<std::string_view, uint32_t> numbers_;
};

}  // namespace psd
