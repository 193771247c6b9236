#pragma once

#include <cstddef>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

namespace psd {

/// Applies `text` to the elements of `range` and joins the results with `separator`.
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

/// Joins the texts of `range` with `separator`.
template <class Range>
std::string joined(const Range& range, std::string_view separator) {
  return joined(range, separator, [](std::string_view each) { return each; });
}

/// Makes untrusted text safe to quote in a message: '?' replaces all but visible ASCII and spaces; at most
/// `bytesMax` bytes, then "...".
std::string printable(std::string_view text, size_t bytesMax = 200);

/// Makes a message safe as one line of a log or terminal: '?' replaces control characters and invalid UTF-8;
/// at most `bytesMax` bytes, then "...".
std::string oneLine(std::string_view text, size_t bytesMax);

/// A quoted path for messages: oneLine(), at most 1000 bytes of it.
std::string quotedPath(std::string_view path);

bool isUtf8(std::string_view text);

/// "2026-03-01T12:00:00Z"
std::string utcText(std::time_t time);

/// The candidate with the smallest edit distance to `word` (case ignored, a swap of two letters counts once),
/// or empty if none is close.
std::string_view nearest(std::string_view word, const std::vector<std::string_view>& candidates);

}  // namespace psd
