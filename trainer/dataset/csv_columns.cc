#include <memory>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "common/text/number.h"
#include "common/text/text.h"
#include "trainer/dataset/csv_lines.h"
#include "trainer/dataset/stored_columns.h"
#include "trainer/dataset/whole_file.h"

namespace psd {
namespace {

constexpr uint64_t kCsvBytesMax = 4ull << 30;
constexpr size_t kCsvColumnsMax = 10'000;

/// A column being read. `whole` and `real` hold the same numbers as long as all are whole.
struct CsvColumn {
  std::string name;
  std::optional<ElementType> declared;  ///< i64 or f32; nullopt: inferred from the numbers
  std::string skipped;                  ///< why the column is skipped; empty: it is read
  bool isWhole = true;
  std::vector<int64_t> whole;
  std::vector<float> real;

  ElementType type() const { return declared.value_or(isWhole ? ElementType::i64 : ElementType::f32); }
  void skip(const Error& why) {
    skipped = why.message;
    std::exchange(whole, {});  // an assignment of {} would keep the memory
    std::exchange(real, {});
  }
};

/// The columns of a file's text. Owned by one thread.
class CsvReader {
 public:
  CsvReader(const std::string& path, std::string_view text) : lines_(path, text) {}

  Result<std::vector<CsvColumn>> read() {
    lines_.nextLine();
    PSD_RETURN_IF_ERROR(readLine([&](size_t) { return addName(); }).status());
    const size_t count = columns_.size();
    uint64_t rows = 0;
    for (; lines_.nextLine(); ++rows) {
      PSD_ASSIGN_OR_RETURN(
          const size_t fields, readLine([&](size_t index) -> Status {
            if (index == count)
              return lines_.errorHere(fmt::format("more than {} fields, the number of names", count));
            if (columns_[index].skipped.empty()) addNumber(columns_[index]);
            return {};
          }));
      if (fields < count) {
        return lines_.errorHere(fmt::format("{} fields; expected {}, the number of names", fields, count));
      }
    }
    if (rows == 0) return lines_.errorHere("no rows; expected a line of names, then lines of numbers");
    return std::move(columns_);
  }

 private:
  /// Calls `take(index)` for each field of the line; returns the number of fields.
  template <class Take>
  Result<size_t> readLine(const Take& take) {
    for (size_t index = 0;; ++index) {
      PSD_ASSIGN_OR_RETURN(const bool more, lines_.nextField());
      if (!more) return index;
      PSD_RETURN_IF_ERROR(take(index));
    }
  }

  Status addName() {
    std::string_view text = lines_.field();
    CsvColumn column;
    for (const ElementType type : {ElementType::i64, ElementType::f32}) {
      const std::string suffix = " " + std::string(elementTypeName(type));
      if (!text.ends_with(suffix)) continue;
      column.declared = type;
      text.remove_suffix(suffix.size());
      break;
    }
    column.name = text;
    if (columns_.size() == kCsvColumnsMax) {
      return lines_.errorHere(fmt::format("more than {} columns", kCsvColumnsMax));
    }
    if (column.name.empty()) column.skip(lines_.errorHere("a column without a name"));
    if (const auto same = indexByName_.find(column.name); same != indexByName_.end()) {
      column.skip(lines_.errorHere(fmt::format("'{}' is the name of two columns", printable(text, 40))));
      columns_[same->second].skip({ErrorCode::io, column.skipped});
    }
    indexByName_.emplace(column.name, columns_.size());
    columns_.push_back(std::move(column));
    return {};
  }

  void addNumber(CsvColumn& column) const {
    const std::string_view text = lines_.field();
    const auto whole = toNumber<int64_t>(text);
    if (column.declared == ElementType::i64 && !whole) {
      return column.skip(lines_.errorHere(
          fmt::format("'{}' is not a whole number; column '{}' is i64", printable(text, 40), column.name)));
    }
    const auto real = toNumber<float>(text);
    if (!real) {
      return column.skip(
          lines_.errorHere(fmt::format("'{}' is not a number that f32 can hold", printable(text, 40))));
    }
    column.isWhole = column.isWhole && whole;
    if (column.isWhole) column.whole.push_back(*whole);
    column.real.push_back(*real);
  }

  CsvLines lines_;
  std::vector<CsvColumn> columns_;
  std::unordered_map<std::string, size_t> indexByName_;  // index of each column, by name
};

}  // namespace

Result<StoredColumns> readCsvColumns(const std::string& path) {
  PSD_ASSIGN_OR_RETURN(const std::string text, readWholeFile(path, kCsvBytesMax));
  PSD_ASSIGN_OR_RETURN(auto read, CsvReader(path, text).read());
  const auto kept = std::make_shared<const std::vector<CsvColumn>>(std::move(read));
  StoredColumns columns;
  columns.memory.push_back(kept);
  for (const CsvColumn& column : *kept) {
    if (!column.skipped.empty()) {
      columns.skipped[column.name] = column.skipped;
      continue;
    }
    const bool isWhole = column.type() == ElementType::i64;
    PSD_RETURN_IF_ERROR(
        addColumn(columns, column.name, column.type(), "", {column.real.size()},
                  isWhole ? std::as_bytes(std::span(column.whole)) : std::as_bytes(std::span(column.real)),
                  path + ": column '" + printable(column.name, 60) + "'"));
  }
  PSD_RETURN_IF_ERROR(finishColumns(columns));
  return columns;
}

}  // namespace psd
