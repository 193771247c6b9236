#include "server/config/model_rules.h"

#include <algorithm>

#include "common/config/json_file.h"

namespace psd {
namespace {

using Json = nlohmann::ordered_json;

void addLines(const std::string& path, const Json& value, std::string& text) {
  if (!value.is_object() || value.empty()) {
    text += path + ": " + jsonText(value) + "\n";
    return;
  }
  for (const auto& [key, below] : value.items()) addLines(path + "." + key, below, text);
}

}  // namespace

bool isOfOneDaemon(std::string_view key) {
  return std::ranges::find(kKeysOfOneDaemon, key) != std::end(kKeysOfOneDaemon);
}

Json underRules(const Json& rules, const Json& own) {
  Json merged = rules;
  for (const std::string_view key : kKeysOfOneDaemon) {
    const std::string name(key);
    merged.erase(name);
    if (own.contains(name)) merged[name] = own[name];
  }
  return merged;
}

std::vector<std::string> limitsBelow(const Json& primarys, const Json& own) {
  std::vector<std::string> below;
  const auto theirs = primarys.find("limits"), mine = own.find("limits");
  if (theirs == primarys.end() || mine == own.end() || !theirs->is_object() || !mine->is_object())
    return below;
  for (const auto& [key, value] : mine->items()) {
    const auto other = theirs->find(key);
    // Times are no room.
    if (key.ends_with("_ms") || other == theirs->end()) continue;
    if (!value.is_number_integer() || !other->is_number_integer()) continue;
    const auto least = value.get<uint64_t>(), most = other->get<uint64_t>();
    const bool unlimited = key == "model_bytes" && most == 0 && least != 0;
    const bool less = key == "model_bytes" ? least != 0 && least < most : least < most;
    if (!unlimited && !less) continue;
    below.push_back("limits." + key + " " + std::to_string(least) + " (primary: " + std::to_string(most) +
                    ")");
  }
  return below;
}

std::string rulesText(const Json& effective) {
  std::string text;
  for (const auto& [key, value] : effective.items()) {
    if (key != "index" && !isOfOneDaemon(key)) addLines(key, value, text);
  }
  return text;
}

}  // namespace psd
