#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/status/status.h"

namespace psd {

/// Parses comma-separated lines (RFC 4180): fields may be quoted, lines end in LF or CRLF. A byte order mark,
/// blanks around fields and empty lines at the end are ignored. Owned by one thread.
class CsvLines {
 public:
  /// `text` outlives it; `path` appears in errors.
  CsvLines(std::string path, std::string_view text);

  /// Advances to the next line, after all fields of this one have been read; false at the end of the text.
  bool nextLine();
  /// Advances to the next field of the line; false at the end of the line. The error: misplaced quotes.
  Result<bool> nextField();
  /// The field, without quotes; valid until the next nextField().
  std::string_view field() const { return field_; }
  /// An error about the current field, or about the line if no field has been read; names file, line and
  /// column.
  Error errorHere(const std::string& what) const;

 private:
  Result<bool> nextQuotedField();
  void skipBlanks();
  void endField();

  const std::string path_;
  const std::string_view text_;
  size_t at_ = 0;  // offset of the next byte
  size_t lineBegin_ = 0;
  uint64_t line_ = 0;  // from 1
  bool lineEnded_ = true;
  std::string_view field_;
  uint64_t fieldLine_ = 1;
  size_t fieldColumn_ = 1;
  std::string unescaped_;  // backs field_ if it holds doubled quotes
};

}  // namespace psd
