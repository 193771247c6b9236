#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "common/status/status.h"

namespace psd {

/// JSON files whose last key is their own checksum: eight hexadecimal digits, the CRC-32C of all bytes before
/// the line feed in front of that key.

/// The text of a file. `object` has a key at least.
std::string sealJson(const nlohmann::ordered_json& object, std::string_view checksumKey);

/// Reads the document in such a file, the checksum included. The error says what is wrong with it, and names
/// no file.
Result<nlohmann::ordered_json> openSealedJson(std::string_view text, std::string_view checksumKey);

}  // namespace psd
