#pragma once

#include <cstddef>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

namespace psd {

/// The texts that `text` makes of the elements of `range`, joined by `separator`.
template <class Range, class Text>
std::string joined(const Range& range, std::string_view separator, const Text& text) {
  std::string all;
  bool first = true;
  for (const auto& each : range) {
    if (!first) all += separator;
    first = false;
    all += text(each);
  }
  return all;
}

/// The texts of `range`, with `separator` between them.
template <class Range>
std::string joined(const Range& range, std::string_view separator) {
  return joined(range, separator, [](std::string_view each) { return each; });
}

/// A text that somebody else chose, fit to be quoted in a message: '?' for all but visible ASCII and spaces,
/// at most `bytesMax`, then "...".
std::string printable(std::string_view text, size_t bytesMax = 200);

/// A message fit to be a line of a log or of a terminal: '?' for control characters and what is no UTF-8, at
/// most `bytesMax`, then "...".
std::string oneLine(std::string_view text, size_t bytesMax);

/// A path in quotes as messages show it: oneLine(), at most 1000 bytes of it.
std::string quotedPath(std::string_view path);

bool isUtf8(std::string_view text);

/// "2026-03-01T12:00:00Z"
std::string utcText(std::time_t time);

/// The candidate with the smallest edit distance to `word` (case ignored, two swapped letters count
/// once), or empty when none is near.
std::string_view nearest(std::string_view word, const std::vector<std::string_view>& candidates);

}  // namespace psd
