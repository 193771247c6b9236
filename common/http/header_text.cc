#include "common/http/header_text.h"

#include <algorithm>

namespace psd {
namespace {

char inSmallLetters(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool sameWord(std::string_view one, std::string_view other) {
  return std::equal(one.begin(), one.end(), other.begin(), other.end(),
                    [](char a, char b) { return inSmallLetters(a) == inSmallLetters(b); });
}

std::string_view withoutSpace(std::string_view text) {
  constexpr std::string_view kSpace = " \t";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

}  // namespace

bool isJsonType(std::string_view contentType) {
  return sameWord(withoutSpace(contentType.substr(0, contentType.find(';'))), "application/json");
}

bool listsWord(std::string_view header, std::string_view word) {
  for (;;) {
    const size_t end = header.find(',');
    if (sameWord(withoutSpace(header.substr(0, end)), word)) return true;
    if (end == std::string_view::npos) return false;
    header.remove_prefix(end + 1);
  }
}

}  // namespace psd
