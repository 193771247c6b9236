#include "server/config/config_schema.h"

#include <algorithm>
#include <functional>

#include "server/config/daemon_keys.h"

namespace psd {
namespace {

using Json = nlohmann::ordered_json;
using Visit = std::function<void(const std::string& path, const Json& key, bool live)>;

Json makeSchema() {
  ConfigReader in = ConfigReader::describing();
  in.declare({"$schema", "Path of a JSON Schema for editors. psd ignores it.", Key::kOfDaemon},
             {{"type", "string"}});
  readKeys(in);
  Json schema = {
      {"$schema", "https://json-schema.org/draft/2020-12/schema"},
      {"title", "Configuration of psd, the parameter server daemon"},
      {"description", "Printed by psd check --schema. docs/reference/configuration.md is the reference."}};
  schema.update(in.schema());
  return schema;
}

/// Visits the keys of an object, of its alternatives and of the objects in it; elements of a list have the
/// path "groups[]".
void visitKeys(const Json& schema, const std::string& path, bool live, const Visit& visit) {
  for (const char* alternatives : {"oneOf", "anyOf"}) {
    const auto found = schema.find(alternatives);
    if (found == schema.end()) continue;
    for (const Json& one : *found) visitKeys(one, path, live, visit);
  }
  if (const auto items = schema.find("items"); items != schema.end()) {
    visitKeys(*items, path + "[]", live, visit);
  }
  const auto properties = schema.find("properties");
  if (properties == schema.end() || !schema.contains("additionalProperties")) return;
  for (const auto& [name, key] : properties->items()) {
    const std::string below = path.empty() ? name : path + "." + name;
    const bool liveBelow = live || key.contains("x-live");
    visit(below, key, liveBelow);
    visitKeys(key, below, liveBelow, visit);
  }
}

/// "groups[2].optimizer.lr" as "groups[].optimizer.lr".
std::string withoutIndexes(std::string_view path) {
  std::string out;
  bool index = false;
  for (const char c : path) {
    index = index && c != ']';
    if (!index) out += c;
    index = index || c == '[';
  }
  return out;
}

/// Adds the values of a key, or of one of its forms, that have names.
void addChoices(const Json& key, std::vector<std::string>& choices) {
  std::vector<std::string> found;
  if (const auto one = key.find("const"); one != key.end() && one->is_string())
    found = {one->get<std::string>()};
  if (const auto names = key.find("enum"); names != key.end()) found = names->get<std::vector<std::string>>();
  if (const auto some = key.find("examples"); some != key.end())
    found = some->get<std::vector<std::string>>();
  if (key.value("type", Json()) == "boolean") found = {"true", "false"};
  for (std::string& choice : found) {
    if (std::ranges::find(choices, choice) == choices.end()) choices.push_back(std::move(choice));
  }
  for (const char* const alternatives : {"oneOf", "anyOf"}) {
    const auto forms = key.find(alternatives);
    for (const Json& form : forms == key.end() ? Json::array() : *forms) addChoices(form, choices);
  }
}

}  // namespace

const Json& configSchema() {
  static const Json schema = makeSchema();
  return schema;
}

bool isKey(std::string_view path) {
  bool found = false;
  visitKeys(configSchema(), "", false,
            [&](const std::string& key, const Json&, bool) { found = found || key == path; });
  return found;
}

bool isLive(std::string_view path) {
  static const std::vector<std::string> liveKeys = [] {
    std::vector<std::string> keys;
    visitKeys(configSchema(), "", false, [&keys](const std::string& key, const Json&, bool live) {
      if (live) keys.push_back(key);
    });
    return keys;
  }();
  const std::string wanted = withoutIndexes(path);
  return std::ranges::any_of(liveKeys, [&wanted](const std::string& key) {
    return wanted.starts_with(key) && (wanted.size() == key.size() || wanted[key.size()] == '.');
  });
}

const std::vector<std::string>& keysOfOneDaemon() {
  static const std::vector<std::string> keys = [] {
    std::vector<std::string> found;
    for (const auto& [name, key] : configSchema()["properties"].items()) {
      if (key.contains("x-of-daemon")) found.push_back(name);
    }
    return found;
  }();
  return keys;
}

std::vector<SettableKey> settableKeys() {
  std::vector<SettableKey> keys;
  visitKeys(configSchema(), "", false, [&keys](const std::string& path, const Json& key, bool live) {
    if (path.find("[]") != std::string::npos || path == "$schema") return;
    auto known = std::ranges::find(keys, path, &SettableKey::path);
    if (known == keys.end()) known = keys.insert(keys.end(), {path, {}, live});
    addChoices(key, known->choices);
  });
  return keys;
}

}  // namespace psd
