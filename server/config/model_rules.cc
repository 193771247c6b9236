#include "server/config/model_rules.h"

#include <algorithm>

#include "common/config/json_file.h"
#include "server/config/config_schema.h"

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
  return std::ranges::find(keysOfOneDaemon(), key) != keysOfOneDaemon().end();
}

Json underRules(const Json& rules, const Json& own) {
  Json merged = rules;
  for (const std::string& name : keysOfOneDaemon()) {
    merged.erase(name);
    if (own.contains(name)) merged[name] = own[name];
  }
  return merged;
}

std::vector<std::string> lowerLimits(const Json& primarys, const Json& own) {
  std::vector<std::string> below;
  const auto theirs = primarys.find("limits"), mine = own.find("limits");
  if (theirs == primarys.end() || mine == own.end() || !theirs->is_object() || !mine->is_object())
    return below;
  for (const auto& [key, value] : mine->items()) {
    const auto other = theirs->find(key);
    // Times take no memory.
    if (key.ends_with("_ms") || other == theirs->end()) continue;
    if (!value.is_number_integer() || !other->is_number_integer()) continue;
    const auto here = value.get<uint64_t>(), there = other->get<uint64_t>();
    const bool unlimitedHere = key == "model_bytes" && here == 0;
    const bool unlimitedThere = key == "model_bytes" && there == 0;
    if (unlimitedHere || (here >= there && !unlimitedThere)) continue;
    below.push_back("limits." + key + " " + std::to_string(here) + " (primary: " + std::to_string(there) +
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
