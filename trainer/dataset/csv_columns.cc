#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>

#include <fmt/format.h>

#include "common/text/text.h"
#include "trainer/dataset/stored_columns.h"
#include "trainer/dataset/whole_file.h"

namespace psd {
namespace {

constexpr uint64_t kCsvBytesMax = 4ull << 30;
constexpr size_t kCsvColumnsMax = 10'000;

std::string_view trimmed(std::string_view text) {
  const auto isOutside = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && isOutside(text.front())) text.remove_prefix(1);
  while (!text.empty() && isOutside(text.back())) text.remove_suffix(1);
  return text;
}

template <class Number>
bool parseNumber(std::string_view text, Number& value) {
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && stop == text.data() + text.size();
}

/// A column that is being read. `whole` and `real` hold the same numbers while all are whole.
struct CsvColumn {
  std::string name;
  std::optional<ElementType> declared;  ///< i64 or f32; nothing: as its numbers are
  bool isWhole = true;
  std::vector<int64_t> whole;
  std::vector<float> real;

  ElementType type() const { return declared.value_or(isWhole ? ElementType::i64 : ElementType::f32); }
};

/// The columns of a file's text. Owned by one thread.
class CsvReader {
 public:
  CsvReader(std::string path, std::string_view text) : path_(std::move(path)), text_(text) {
    constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";  // which some programs write
    if (text_.starts_with(kByteOrderMark)) text_.remove_prefix(kByteOrderMark.size());
  }

  Result<std::vector<CsvColumn>> read() {
    PSD_RETURN_IF_ERROR(
        readLine([&](std::string_view name, size_t at, size_t) { return addName(name, at); }));
    const size_t count = columns_.size();
    uint64_t rows = 0;
    while (!text_.empty()) {
      size_t fields = 0;
      PSD_RETURN_IF_ERROR(readLine([&](std::string_view field, size_t at, size_t index) {
        fields = index + 1;
        return index < count ? addNumber(columns_[index], field, at)
                             : wrong(at, fmt::format("more than {} fields, as the names are", count));
      }));
      if (fields < count)
        return wrong(0, fmt::format("{} fields; expected {}, as the names are", fields, count));
      ++rows;
    }
    if (rows == 0) return wrong(0, "no rows; expected names, then numbers below them");
    return std::move(columns_);
  }

 private:
  /// `take(field, at, index)` for each field of the next line.
  template <class Take>
  Status readLine(const Take& take) {
    ++line_;
    const std::string_view line = text_.substr(0, text_.find('\n'));
    text_.remove_prefix(std::min(text_.size(), line.size() + 1));
    size_t index = 0;
    for (size_t begin = 0; begin <= line.size(); ++index) {
      const size_t comma = std::min(line.find(',', begin), line.size());
      PSD_RETURN_IF_ERROR(take(trimmed(line.substr(begin, comma - begin)), begin, index));
      begin = comma + 1;
    }
    return {};
  }

  Status addName(std::string_view text, size_t at) {
    if (text.size() >= 2 && text.front() == '"' && text.back() == '"') text = text.substr(1, text.size() - 2);
    CsvColumn column;
    for (const ElementType type : {ElementType::i64, ElementType::f32}) {
      const std::string suffix = " " + std::string(elementTypeName(type));
      if (!text.ends_with(suffix)) continue;
      column.declared = type;
      text.remove_suffix(suffix.size());
      break;
    }
    column.name = text;
    const bool known = std::ranges::count(columns_, column.name, &CsvColumn::name) != 0;
    if (column.name.empty() || known || columns_.size() == kCsvColumnsMax) {
      return wrong(at, fmt::format("'{}' is no name; expected a line of different names first, at most {}",
                                   printable(text, 40), kCsvColumnsMax));
    }
    columns_.push_back(std::move(column));
    return {};
  }

  Status addNumber(CsvColumn& column, std::string_view text, size_t at) const {
    int64_t whole = 0;
    float real = 0;
    const bool isWhole = parseNumber(text, whole);
    if (column.declared == ElementType::i64 && !isWhole) {
      return wrong(at, fmt::format("'{}' is no whole number, of which column '{}' is", printable(text, 40),
                                   column.name));
    }
    if (!parseNumber(text, real) || !std::isfinite(real)) {
      return wrong(at, fmt::format("'{}' is no number that f32 holds", printable(text, 40)));
    }
    column.isWhole = column.isWhole && isWhole;
    if (column.isWhole) column.whole.push_back(whole);
    column.real.push_back(real);
    return {};
  }

  /// `at`: bytes from the line's begin.
  Error wrong(size_t at, const std::string& what) const {
    return {ErrorCode::io, fmt::format("{}:{}:{}: {}", path_, line_, at + 1, what)};
  }

  const std::string path_;
  std::string_view text_;  // that is left
  uint64_t line_ = 0;      // from 1, of the newest
  std::vector<CsvColumn> columns_;
};

}  // namespace

Result<StoredColumns> readCsvColumns(const std::string& path) {
  PSD_ASSIGN_OR_RETURN(const std::string text, readWholeFile(path, kCsvBytesMax));
  PSD_ASSIGN_OR_RETURN(auto read, CsvReader(path, text).read());
  const auto kept = std::make_shared<const std::vector<CsvColumn>>(std::move(read));
  StoredColumns columns;
  columns.memory.push_back(kept);
  for (const CsvColumn& column : *kept) {
    const bool isWhole = column.type() == ElementType::i64;
    PSD_RETURN_IF_ERROR(
        addColumn(columns, column.name, column.type(), "", {column.real.size()},
                  isWhole ? std::as_bytes(std::span(column.whole)) : std::as_bytes(std::span(column.real)),
                  path + ": column '" + printable(column.name, 60) + "'"));
  }
  return columns;
}

}  // namespace psd
