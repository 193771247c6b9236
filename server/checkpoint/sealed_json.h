#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "common/config/object_reader.h"
#include "common/status/status.h"

namespace psd {

/// JSON files whose last key is their own checksum: eight hexadecimal digits, the CRC-32C of all bytes before
/// the line feed in front of that key.

/// The text of a file. `object` has a key at least.
std::string sealJson(const nlohmann::ordered_json& object, std::string_view checksumKey);

/// Reads the document in such a file, the checksum included. The error says what is wrong with it, and names
/// no file.
Result<nlohmann::ordered_json> openSealedJson(std::string_view text, std::string_view checksumKey);

/// A CRC-32C in such a file, eight hexadecimal digits.
uint32_t readCrc(ObjectReader& in, std::string_view key);

}  // namespace psd
