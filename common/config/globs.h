#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/config/object_reader.h"

namespace psd {

/// What keeps the glob from being one, for people, who know the key; empty: nothing.
std::string globFault(const std::string& glob);

/// Reads a key that holds one glob or several; absent: none. Problems go to the reader.
std::vector<std::string> readGlobs(ObjectReader& entry, std::string_view key);
/// Reads the key "match" of an entry: one glob or several, at least one. `what` tells people what they name.
/// Problems go to the reader.
std::vector<std::string> readMatch(ObjectReader& entry, const std::string& what);

/// Whether some of the globs match the name.
bool anyMatches(const std::vector<std::string>& globs, const std::string& name);

}  // namespace psd
