#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/config/config_reader.h"
#include "common/os/address.h"

namespace psd {

/// The JSON path of an element of a list: "listen[2]".
std::string elementPath(std::string_view key, size_t index);

/// Keywords of JSON Schema for a list of addresses, at least `min` of them.
nlohmann::ordered_json addressList(size_t min = 0);

/// The addresses that the texts of a key name; one that is none goes to the reader and is left out.
std::vector<Address> parseAddresses(ConfigReader& in, std::string_view key,
                                    const std::vector<std::string>& texts);

}  // namespace psd
