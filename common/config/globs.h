#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/config/object_reader.h"

namespace psd {

/// The fault of a malformed glob, to follow the key in an error; else empty.
std::string globFault(const std::string& glob);

/// Reads a key with one glob or a list of them; absent: none. Problems go to the reader.
std::vector<std::string> readGlobs(ObjectReader& entry, std::string_view key);

/// Whether one of the globs matches the name.
bool anyMatches(const std::vector<std::string>& globs, const std::string& name);

}  // namespace psd
