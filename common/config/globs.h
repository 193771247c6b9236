#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/config/object_reader.h"

namespace psd {

/// The human-readable fault of a malformed glob, to follow its key; empty: the glob is valid.
std::string globFault(const std::string& glob);

/// Reads a key that holds one or several globs; absent: none. Errors go to the reader.
std::vector<std::string> readGlobs(ObjectReader& entry, std::string_view key);
/// Reads the key "match" of an entry: one or several globs, at least one. `what` describes, in the error
/// message, what they match. Errors go to the reader.
std::vector<std::string> readMatch(ObjectReader& entry, const std::string& what);

/// Whether any glob matches the name.
bool anyMatches(const std::vector<std::string>& globs, const std::string& name);

}  // namespace psd
