#include "server/config/addresses.h"

#include <utility>

namespace psd {

std::string elementPath(std::string_view key, size_t index) {
  return std::string(key) + "[" + std::to_string(index) + "]";
}

nlohmann::ordered_json addressList(size_t min) {
  nlohmann::ordered_json keywords = {
      {"items", {{"pattern", "^((tcp|tls)://[^\\u0000]+|unix:///[^\\u0000]+)$"}}}};
  if (min > 0) keywords["minItems"] = min;
  return keywords;
}

std::vector<Address> parseAddresses(ConfigReader& in, std::string_view key,
                                    const std::vector<std::string>& texts) {
  std::vector<Address> addresses;
  for (size_t i = 0; i < texts.size(); i++) {
    Result<Address> address = parseAddress(texts[i]);
    if (!address.ok()) {
      in.fail(elementPath(key, i), address.message());
    } else {
      addresses.push_back(*std::move(address));
    }
  }
  return addresses;
}

}  // namespace psd
