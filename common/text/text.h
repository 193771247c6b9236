#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace psd {

/// What `text` makes of the elements of `range`, with `separator` between them.
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

/// The same for texts.
template <class Range>
std::string joined(const Range& range, std::string_view separator) {
  return joined(range, separator, [](std::string_view each) { return each; });
}

/// The candidate with the smallest edit distance to `word` (case ignored, two swapped letters count
/// once), or empty when none is near.
std::string_view nearest(std::string_view word, const std::vector<std::string_view>& candidates);

}  // namespace psd
