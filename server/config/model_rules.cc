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

std::string rulesText(const Json& effective) {
  std::string text;
  for (const auto& [key, value] : effective.items()) {
    if (key != "index" && !isOfOneDaemon(key)) addLines(key, value, text);
  }
  return text;
}

}  // namespace psd
