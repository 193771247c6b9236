#include "trainer/dataset/vocabulary.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace psd {
namespace {

/// A code point and its length in bytes; 0 bytes: invalid UTF-8.
struct CodePoint {
  uint32_t value = 0;
  size_t bytes = 0;
};

CodePoint codePointAt(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[at + i]); };
  const uint32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  const size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() - at < bytes) return {};
  uint32_t value = first & (0xff >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    value = value << 6 | (byte(i) & 0x3f);
  }
  const bool shorter = (bytes == 3 && value < 0x800) || (bytes == 4 && value < 0x10000);
  const bool surrogate = value >= 0xd800 && value < 0xe000;
  if (shorter || surrogate || value > 0x10ffff) return {};
  return {value, bytes};
}

bool within(uint32_t value, uint32_t first, uint32_t last) { return value >= first && value <= last; }

bool isWordCharacter(uint32_t value) {
  if (value < 0x80) {
    return within(value, 'a', 'z') || within(value, 'A', 'Z') || within(value, '0', '9') || value == '\'';
  }
  return !within(value, 0x80, 0xbf) && !within(value, 0x2000, 0x206f) && !within(value, 0x3000, 0x303f);
}

/// Separates words without being a token.
bool isBlank(uint32_t value) { return value <= ' ' && value != '\n'; }

}  // namespace

Result<std::vector<std::string_view>> cutText(std::string& text, TextLevel level) {
  std::vector<std::string_view> tokens;
  bool inWord = false;
  for (size_t at = 0; at < text.size();) {
    const auto [value, bytes] = codePointAt(text, at);
    if (bytes == 0) return Error{ErrorCode::io, fmt::format("byte {} is not UTF-8", at)};
    const bool continuesWord = inWord && isWordCharacter(value);
    inWord = level == TextLevel::word && isWordCharacter(value);
    if (inWord && within(value, 'A', 'Z')) text[at] = static_cast<char>(value - 'A' + 'a');
    if (continuesWord) {
      tokens.back() = {tokens.back().data(), tokens.back().size() + bytes};
    } else if (level == TextLevel::character || !isBlank(value)) {
      tokens.push_back(std::string_view(text).substr(at, bytes));
    }
    at += bytes;
  }
  return tokens;
}

Vocabulary::Vocabulary(const std::vector<std::string_view>& tokens, uint32_t size) {
  std::unordered_map<std::string_view, uint64_t> counts;
  for (const std::string_view token : tokens) ++counts[token];
  std::vector<std::pair<std::string_view, uint64_t>> ordered(counts.begin(), counts.end());
  std::sort(ordered.begin(), ordered.end(), [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
  ordered.resize(std::min<size_t>(ordered.size(), size - 1));
  for (const auto& [token, count] : ordered) {
    numbers_.emplace(token, static_cast<uint32_t>(numbers_.size()) + 1);
  }
}

uint32_t Vocabulary::numberOf(std::string_view token) const {
  const auto found = numbers_.find(token);
  return found == numbers_.end() ? kUnknown : found->second;
}

}  // namespace psd
