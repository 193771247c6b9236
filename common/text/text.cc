#include "common/text/text.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace psd {
namespace {

std::string lowered(std::string_view word) {
  std::string result(word);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

/// Insertions, deletions, replacements and swaps of neighbours that turn one word into the other.
size_t editDistance(std::string_view a, std::string_view b) {
  std::array<std::vector<size_t>, 3> rows;  // of a − 2, a − 1 and a
  for (auto& row : rows) row.resize(b.size() + 1);
  for (size_t j = 0; j <= b.size(); j++) rows[2][j] = j;
  for (size_t i = 1; i <= a.size(); i++) {
    std::rotate(rows.begin(), rows.begin() + 1, rows.end());
    rows[2][0] = i;
    for (size_t j = 1; j <= b.size(); j++) {
      size_t replaced = rows[1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      rows[2][j] = std::min({replaced, rows[1][j] + 1, rows[2][j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        rows[2][j] = std::min(rows[2][j], rows[0][j - 2] + 1);
      }
    }
  }
  return rows[2][b.size()];
}

}  // namespace

std::string_view nearest(std::string_view word, const std::vector<std::string_view>& candidates) {
  std::string_view best;
  size_t bestDistance = 0;
  for (std::string_view candidate : candidates) {
    size_t distance = editDistance(lowered(word), lowered(candidate));
    size_t near = std::max<size_t>(1, std::max(word.size(), candidate.size()) / 3);
    if (distance > near || distance >= candidate.size()) continue;
    if (best.empty() || distance < bestDistance) best = candidate, bestDistance = distance;
  }
  return best;
}

}  // namespace psd
