#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/status/status.h"

namespace psd {

/// Lines of fields with commas between them, as RFC 4180 has them and as programs write them: fields may be
/// in quotes, lines end in LF or CRLF. A byte order mark, blanks around fields and empty lines at the end
/// count for nothing. Owned by one thread.
class CsvLines {
 public:
  /// `text` outlives it; `path` stands in errors.
  CsvLines(std::string path, std::string_view text);

  /// Goes to the next line, once the fields of this one have been read; false where there is none.
  bool nextLine();
  /// Goes to the next field of the line; false where there is none. The error: quotes that do not end it.
  Result<bool> nextField();
  /// The field, without quotes; valid until the next one.
  std::string_view field() const { return field_; }
  /// An error about the field, or about the line where none of its fields has been read: file, line, column.
  Error wrong(const std::string& what) const;

 private:
  Result<bool> nextQuotedField();
  void skipBlanks();
  void endField();

  const std::string path_;
  const std::string_view text_;
  size_t at_ = 0;  // what has been read
  size_t lineBegin_ = 0;
  uint64_t line_ = 0;  // from 1
  bool lineEnded_ = true;
  std::string_view field_;
  uint64_t fieldLine_ = 1;
  size_t fieldColumn_ = 1;
  std::string unescaped_;  // what field_ is a view of where quotes are doubled in it
};

}  // namespace psd
