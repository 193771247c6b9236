#include "trainer/dataset/csv_lines.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace psd {
namespace {

bool isBlank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

std::string_view trimText(std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  while (!text.empty() && (isBlank(text.back()) || text.back() == '\n')) text.remove_suffix(1);
  return text;
}

}  // namespace

CsvLines::CsvLines(std::string path, std::string_view text) : path_(std::move(path)), text_(trimText(text)) {}

bool CsvLines::nextLine() {
  if (at_ == text_.size() && line_ > 0) return false;
  ++line_;
  lineBegin_ = at_;
  lineEnded_ = false;
  fieldLine_ = line_;
  fieldColumn_ = 1;
  return true;
}

Result<bool> CsvLines::nextField() {
  if (lineEnded_) return false;
  fieldLine_ = line_;
  fieldColumn_ = at_ - lineBegin_ + 1;
  skipBlanks();
  if (at_ < text_.size() && text_[at_] == '"') return nextQuotedField();
  const size_t begin = at_;
  while (at_ < text_.size() && text_[at_] != ',' && text_[at_] != '\n') ++at_;
  field_ = text_.substr(begin, at_ - begin);
  while (!field_.empty() && isBlank(field_.back())) field_.remove_suffix(1);
  endField();
  return true;
}

Result<bool> CsvLines::nextQuotedField() {
  const size_t begin = ++at_;
  bool doubled = false;
  for (;; at_ += 2) {
    at_ = text_.find('"', at_);
    if (at_ == std::string_view::npos) return errorHere("a quoted field has no closing quote");
    if (text_.substr(at_ + 1, 1) != "\"") break;
    doubled = true;
  }
  field_ = text_.substr(begin, at_ - begin);
  if (const size_t lastLine = field_.rfind('\n'); lastLine != std::string_view::npos) {
    line_ += static_cast<uint64_t>(std::ranges::count(field_, '\n'));
    lineBegin_ = begin + lastLine + 1;
  }
  if (doubled) {
    unescaped_.clear();
    for (size_t i = 0; i < field_.size(); ++i) {
      unescaped_ += field_[i];
      if (field_[i] == '"') ++i;
    }
    field_ = unescaped_;
  }
  ++at_;
  skipBlanks();
  if (at_ < text_.size() && text_[at_] != ',' && text_[at_] != '\n') {
    return errorHere("text follows a closing quote; expected a comma or the end of the line");
  }
  endField();
  return true;
}

void CsvLines::skipBlanks() {
  while (at_ < text_.size() && isBlank(text_[at_])) ++at_;
}

/// Called at a comma, at the end of the line, or at the end of the text.
void CsvLines::endField() {
  lineEnded_ = at_ == text_.size() || text_[at_] == '\n';
  if (at_ < text_.size()) ++at_;
}

Error CsvLines::errorHere(const std::string& what) const {
  return {ErrorCode::io, fmt::format("{}:{}:{}: {}", path_, fieldLine_, fieldColumn_, what)};
}

}  // namespace psd
