#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace psd {

/// The keys of an effective configuration, such as "optimizer.lr", whose values are not those that they have
/// when they are left out. A list is one key.
std::vector<std::string> keysOffDefault(const nlohmann::ordered_json& effective);

}  // namespace psd
