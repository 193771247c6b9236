#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/status/status.h"

namespace psd {

/// Parses JSON with // and /* */ comments. A syntax error names `origin`, line and column; a repeated
/// key in one object is an error that names it too.
Result<nlohmann::ordered_json> parseJson(std::string_view text, std::string_view origin);

/// Reads and parses a file. Errors name the path and the reason.
Result<nlohmann::ordered_json> readJsonFile(const std::string& path);

/// Applies "a.b.c=value" to `document`, creating objects on the way. `value` is taken as JSON when it
/// parses as such, else as a string. Errors name the assignment.
Status applyOverride(nlohmann::ordered_json& document, std::string_view assignment);

/// The candidate with the smallest edit distance to `word`, or empty when none is near.
std::string_view nearest(std::string_view word, const std::vector<std::string_view>& candidates);

}  // namespace psd
