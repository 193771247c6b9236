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

/// Number of insertions, deletions, replacements and swaps of adjacent letters between two words.
size_t editDistance(std::string_view a, std::string_view b) {
  std::array<std::vector<size_t>, 3>
      rows;  // for prefixes of a with 2 and 1 letters less, and the current one
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

/// Length in bytes of the UTF-8 character at the start of the non-empty text; 0 if it is invalid.
size_t characterBytes(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t bytes = lead >= 0xc2 && lead < 0xe0   ? 2
                       : lead >= 0xe0 && lead < 0xf0 ? 3
                       : lead >= 0xf0 && lead < 0xf5 ? 4
                                                     : 0;
  for (size_t i = 1; i < bytes; i++) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Overlong, a surrogate, or above U+10FFFF.
  const bool none = (lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xed && byte(1) >= 0xa0) ||
                    (lead == 0xf0 && byte(1) < 0x90) || (lead == 0xf4 && byte(1) >= 0x90);
  return none ? 0 : bytes;
}

}  // namespace

std::string printable(std::string_view text, size_t bytesMax) {
  std::string out(text.substr(0, bytesMax));
  for (char& c : out) {
    if (c < ' ' || c > '~') c = '?';
  }
  if (text.size() > bytesMax) out += "...";
  return out;
}

std::string oneLine(std::string_view text, size_t bytesMax) {
  std::string out;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t bytes = characterBytes(rest);
    if (out.size() + std::max<size_t>(bytes, 1) > bytesMax) return out + "...";
    const bool control = bytes == 1 && (rest[0] < ' ' || rest[0] == 0x7f);
    if (bytes == 0 || control) {
      out += '?';
    } else {
      out += rest.substr(0, bytes);
    }
    rest.remove_prefix(std::max<size_t>(bytes, 1));
  }
  return out;
}

std::string quotedPath(std::string_view path) { return "'" + oneLine(path, 1000) + "'"; }

bool isUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t bytes = characterBytes(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

std::string utcText(std::time_t time) {
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

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
