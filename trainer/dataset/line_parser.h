#pragma once

#include <string>
#include <string_view>

#include <fmt/format.h>

#include "common/text/text.h"

namespace psd {

/// The place of a parser in a line, and why it stopped there. The base of the parsers of one line. Owned by
/// one thread.
class LineParser {
 public:
  /// Where the parser has stopped, what is there, and what it expected.
  std::string why() const {
    return fmt::format("at character {}: '{}'; {}", at_ - begin_ + 1,
                       printable(std::string_view(at_, static_cast<size_t>(end_ - at_)), 20), expected_);
  }

 protected:
  explicit LineParser(std::string_view line) : begin_(line.data()), at_(begin_), end_(begin_ + line.size()) {}

  /// Returns false.
  bool fails(const char* expected) {
    expected_ = expected;
    return false;
  }

  const char* const begin_;
  const char* at_;
  const char* const end_;

 private:
  const char* expected_ = "";
};

}  // namespace psd
