#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "common/config/object_reader.h"
#include "common/status/status.h"

namespace psd {

/// JSON files whose last key is their own checksum: eight hexadecimal digits, the CRC-32C of all bytes up to,
/// and excluding, the line feed in front of that key.

/// The text of a file. `object` must have at least one key.
std::string sealJson(const nlohmann::ordered_json& object, std::string_view checksumKey);

/// Parses the text of such a file and verifies the checksum. The error names the problem but not the file.
Result<nlohmann::ordered_json> openSealedJson(std::string_view text, std::string_view checksumKey);

/// Reads a CRC-32C from such a file: eight hexadecimal digits.
uint32_t readCrc(ObjectReader& in, std::string_view key);

}  // namespace psd
