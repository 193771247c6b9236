#include "server/config/default_keys.h"

#include "server/config/daemon_config.h"

namespace psd {
namespace {

using Json = nlohmann::ordered_json;

/// Whether the configuration reads the same without the value at `place`.
bool isDefault(const Json& effective, const Json::json_pointer& place) {
  Json without = effective;
  without[place.parent_pointer()].erase(place.back());
  const auto read = readDaemonConfig(std::move(without));
  return read.ok() && read->effective == effective;
}

void collect(const Json& effective, const Json::json_pointer& place, const std::string& path,
             std::vector<std::string>& found) {
  const Json& value = effective[place];
  if (!path.empty() && (!value.is_object() || value.empty())) {
    if (!isDefault(effective, place)) found.push_back(path);
    return;
  }
  for (const auto& [key, below] : value.items())
    collect(effective, place / key, path.empty() ? key : path + "." + key, found);
}

}  // namespace

std::vector<std::string> keysOffDefault(const Json& effective) {
  std::vector<std::string> found;
  collect(effective, Json::json_pointer(), "", found);
  return found;
}

}  // namespace psd
