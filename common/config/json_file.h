#pragma once

#include <functional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "common/os/env.h"
#include "common/status/status.h"

namespace psd {

/// Largest configuration file that is read.
inline constexpr uint64_t kConfigBytesMax = 16ull << 20;

/// Parses JSON with // and /* */ comments. A syntax error names `origin`, line, column (in
/// characters), what was expected and what was found; a repeated key in one object is an error that
/// names its path.
Result<nlohmann::ordered_json> parseJson(std::string_view text, std::string_view origin);

/// Reads and parses a file of at most `kConfigBytesMax`. Errors name the path and the reason.
Result<nlohmann::ordered_json> readJsonFile(Env& env, const std::string& path);

/// Applies "a.b.c=value" to `document`, creating objects on the way. `value` is JSON where it parses as such,
/// else a string; one that starts like a JSON string, list or object must be one; null removes an existing
/// key, and changes nothing where `isKey`, if given, knows the path of an absent one. Errors name the
/// assignment.
Status applyOverride(nlohmann::ordered_json& document, std::string_view assignment,
                     const std::function<bool(std::string_view path)>& isKey = {});

/// The JSON path that an assignment sets, as errors of the document name it.
std::string overriddenPath(std::string_view assignment);

/// Appends a member to an object that does not have the key. Does not search for it, as an ordered object
/// would compare all its keys.
void appendMember(nlohmann::ordered_json& object, const std::string& key, nlohmann::ordered_json value);

/// A document as text; on one line where `indent` is −1. Never throws: invalid UTF-8 becomes U+FFFD.
std::string jsonText(const nlohmann::ordered_json& document, int indent = -1);

/// A key for a path in a message: control characters are escaped, so that the message stays one line, and the
/// key is cut after 200 bytes.
std::string keyText(const std::string& key);

/// A value for error messages: the value itself when it is short; an object or list is called "an object" or
/// "a list".
std::string describeJson(const nlohmann::ordered_json& value);

}  // namespace psd
