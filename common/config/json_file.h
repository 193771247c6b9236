#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "common/os/env.h"
#include "common/status/status.h"

namespace psd {

/// Largest configuration file that is read; anything larger was meant for somebody else.
inline constexpr uint64_t kConfigBytesMax = 16ull << 20;

/// Parses JSON with // and /* */ comments. A syntax error names `origin`, line, column (in
/// characters), what was expected and what stands there; a repeated key in one object is an error
/// that names its path.
Result<nlohmann::ordered_json> parseJson(std::string_view text, std::string_view origin);

/// Reads and parses a file of at most `kConfigBytesMax`. Errors name the path and the reason.
Result<nlohmann::ordered_json> readJsonFile(Env& env, const std::string& path);

/// Applies "a.b.c=value" to `document`, creating objects on the way. `value` is taken as JSON when
/// it parses as such, else as a string; one that begins like a JSON string, list or object must be
/// one; null takes a key away that is there. Errors name the assignment.
Status applyOverride(nlohmann::ordered_json& document, std::string_view assignment);

/// Gives an object a member at its end. The object has none of that key, which is not looked for: an ordered
/// object would compare all its keys.
void appendMember(nlohmann::ordered_json& object, const std::string& key, nlohmann::ordered_json value);

/// A document as text; on one line where `indent` is −1. Never throws: what is no UTF-8 in it reads U+FFFD.
std::string jsonText(const nlohmann::ordered_json& document, int indent = -1);

/// A key as it stands in a path: control characters escaped, so that a message stays one line,
/// and cut beyond 200 bytes.
std::string keyText(const std::string& key);

/// A value for error messages: the value itself when it is short; an object or list is called "an object" or
/// "a list".
std::string describeJson(const nlohmann::ordered_json& value);

}  // namespace psd
