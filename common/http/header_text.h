#pragma once

#include <string_view>

namespace psd {

/// Whether a Content-Type is that of JSON, in letters of any case and with parameters or without.
/// Thread-safe.
bool isJsonType(std::string_view contentType);

/// Whether a header that lists words, as Connection does, has that one, in letters of any case. Thread-safe.
bool listsWord(std::string_view header, std::string_view word);

}  // namespace psd
