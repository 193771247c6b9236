#pragma once

#include <string_view>

namespace psd {

/// Whether a Content-Type is JSON, case-insensitive, with or without parameters. Thread-safe.
bool isJsonType(std::string_view contentType);

/// Whether a header that lists words, like Connection, contains `word`, case-insensitive. Thread-safe.
bool listsWord(std::string_view header, std::string_view word);

}  // namespace psd
