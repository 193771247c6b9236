#include "common/config/json_syntax.h"

#include <algorithm>
#include <cctype>

namespace psd {
namespace {

constexpr size_t kQuotedTokenBytesMax = 40;
constexpr std::string_view kSpace = " \t\r\n";

bool isWordByte(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '+' || c == '.';
}

bool isUtf8Continuation(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

/// "line 3, column 5" of a byte; columns count characters, not bytes.
std::string place(std::string_view text, size_t at) {
  std::string_view before = text.substr(0, at);
  size_t line = 1 + static_cast<size_t>(std::count(before.begin(), before.end(), '\n'));
  size_t lineBegin = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  std::string_view inLine = before.substr(lineBegin);
  auto continuations = std::count_if(inLine.begin(), inLine.end(), isUtf8Continuation);
  size_t column = 1 + inLine.size() - static_cast<size_t>(continuations);
  return "line " + std::to_string(line) + ", column " + std::to_string(column);
}

/// The text at a byte: a string, a word or number, one character, or the end.
std::string found(std::string_view text, size_t at) {
  if (text.find_first_not_of(kSpace, at) == std::string_view::npos) return "the end of the text";
  size_t end = at + 1;
  if (text[at] == '"') {
    while (end < text.size() && text[end] != '"' && text[end] != '\n') end += text[end] == '\\' ? 2 : 1;
    end = std::min(end + 1, text.size());
  } else if (isWordByte(text[at])) {
    while (end < text.size() && isWordByte(text[end])) end++;
  } else {
    while (end < text.size() && isUtf8Continuation(text[end])) end++;
  }
  if (end - at <= kQuotedTokenBytesMax) return "'" + std::string(text.substr(at, end - at)) + "'";
  end = at + kQuotedTokenBytesMax;
  while (end > at + 1 && isUtf8Continuation(text[end])) end--;  // not within a character
  return "'" + std::string(text.substr(at, end - at)) + "…'";
}

/// First byte of the offending token. `detail` is the parser's message after "… - ".
size_t locate(std::string_view text, const JsonFailure& failure, std::string_view detail) {
  size_t end = std::min(failure.position, text.size());
  auto tokenBegin = [&] { return end - std::min(end, failure.lastToken.size()); };
  if (detail.starts_with("unexpected end of input") || detail.starts_with("invalid comment; missing") ||
      end == 0) {
    size_t last = text.find_last_not_of(kSpace);
    return last == std::string_view::npos ? 0 : last + 1;
  }
  if (detail.starts_with("unexpected string") || detail.starts_with("unexpected number") ||
      detail.starts_with("invalid string: missing closing quote") || detail.starts_with("number overflow")) {
    return tokenBegin();
  }
  size_t at = end - 1;
  if (detail.find("literal") != std::string_view::npos) {
    size_t word = at;
    while (word > 0 && isWordByte(text[word - 1])) word--;
    // The parser reads a whole word only if it begins like true, false or null.
    if (std::string_view("tfn").find(text[word]) != std::string_view::npos) return word;
  }
  return at;
}

/// What is allowed at the place, from the parser's context ("value", "object key", …).
std::string expectation(std::string_view context, std::string_view detail, bool emptySoFar) {
  if (detail.find("; expected end of input") != std::string_view::npos) return "nothing more";
  if (context == "object key") {
    return emptySoFar ? "a key in double quotes or '}'" : "another key in double quotes after the ','";
  }
  if (context == "object separator") return "':' after the key";
  if (context == "object") return "',' or '}'";
  if (context == "array") return "',' or ']'";
  return "a value";
}

}  // namespace

std::string describeSyntaxError(std::string_view text, const JsonFailure& failure) {
  constexpr std::string_view kContext = "while parsing ", kDetail = " - ";
  std::string_view message = failure.parserText, context, detail = message;
  if (size_t begin = message.find(kContext); begin != std::string_view::npos) {
    begin += kContext.size();
    size_t end = message.find(kDetail, begin);
    context = message.substr(begin, end - begin);
    detail = message.substr(end + kDetail.size());
  } else if (size_t overflow = message.find("number overflow"); overflow != std::string_view::npos) {
    detail = message.substr(overflow);
  }
  size_t at = locate(text, failure, detail);
  std::string where = place(text, at) + ": ";

  if (detail.starts_with("number overflow")) {
    return where + "the number " + found(text, at) + " is too large";
  }
  if (detail.starts_with("invalid string: missing closing quote") ||
      detail.starts_with("invalid string: control character U+000A")) {
    return where + "the closing '\"' of a string is missing";
  }
  if (detail.starts_with("invalid string: ill-formed UTF-8")) {
    return where + "not UTF-8 text";
  }
  if (detail.starts_with("invalid ") && !detail.starts_with("invalid literal")) {
    return where + std::string(detail.substr(0, detail.find("; last read")));
  }
  return where + "expected " + expectation(context, detail, failure.emptySoFar) + ", not " + found(text, at);
}

}  // namespace psd
