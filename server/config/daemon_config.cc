#include "server/config/daemon_config.h"

#include <algorithm>
#include <utility>

#include "common/config/json_file.h"
#include "common/config/overrides.h"
#include "common/text/split.h"
#include "common/text/text.h"
#include "server/config/addresses.h"
#include "server/config/config_schema.h"
#include "server/config/model_rules.h"
#include "server/config/store_rules.h"

namespace psd {
namespace {

using Json = nlohmann::ordered_json;

Overrides overridesOf(const ConfigOverrides& given) {
  Overrides all;
  for (size_t i = 0; i < given.listen.size(); i++) {
    all.add("--listen", given.listen[i], elementPath("listen", i),
            [i](Json& document, const std::string& address) {
              if (i == 0) document["listen"] = Json::array();
              document["listen"].push_back(address);
              return Status();
            });
  }
  if (given.http) {
    all.add("--http", *given.http, elementPath("http.listen", 0),
            [](Json& document, const std::string& address) {
              const Status cleared = applyOverride(document, "http.listen=[]");
              if (!cleared.ok()) return Status(cleared.error().code, "--http: " + cleared.message());
              document["http"]["listen"].push_back(address);
              return Status();
            });
  }
  if (given.insecure) all.addSwitch("--insecure", "insecure");
  if (given.device) {
    all.add("--device", *given.device, "device", [](Json& document, const std::string& device) {
      document.erase("devices");
      document["device"] = device;
      return Status();
    });
  }
  if (given.index) {
    all.add("--index", *given.index, "index", [](Json& document, const std::string& index) {
      const Status set = applyOverride(document, "index=" + index);
      return set.ok() ? set : Status(set.error().code, "--index: " + set.message());
    });
  }
  if (given.replicaOf) {
    all.add("--replica-of", *given.replicaOf, "publish.upstream",
            [](Json& document, const std::string& addresses) {
              Json& publish = document["publish"];
              if (!publish.is_object()) publish = Json::object();
              publish["from"] = "upstream";
              publish["upstream"] = splitAtCommas(addresses);
              return Status();
            });
  }
  for (const std::string& one : given.assignments) all.addAssignment(one, isKey);
  return all;
}

/// {"aggregator": "median"} is short for {"aggregator": {"type": "median"}}, under every policy.
void spellOutAggregator(Json& policy) {
  const auto found = policy.is_object() ? policy.find("aggregator") : policy.end();
  if (found != policy.end() && found->is_string()) *found = Json{{"type", *found}};
}

void spellOutAggregators(Json& document) {
  if (!document.is_object()) return;
  if (const auto policy = document.find("policy"); policy != document.end()) spellOutAggregator(*policy);
  const auto groups = document.find("groups");
  if (groups == document.end() || !groups->is_array()) return;
  for (Json& group : *groups) {
    if (!group.is_object()) continue;
    if (const auto policy = group.find("policy"); policy != group.end()) spellOutAggregator(*policy);
  }
}

}  // namespace

Status checkModel(const DaemonConfig& config, const ModelSpec& model) {
  PSD_RETURN_IF_ERROR(assignGroups(model, config.groups).status());
  PSD_RETURN_IF_ERROR(assignTables(model, config.tables).status());
  return checkRowsFit(model, config.limits.sliceBytes);
}

Result<LoadedConfig> readDaemonConfig(Json document) {
  if (const auto schema = document.is_object() ? document.find("$schema") : document.end();
      schema != document.end()) {
    if (!schema->is_string()) {
      return Error{ErrorCode::invalidArgument, "$schema: must be a string, not " + describeJson(*schema)};
    }
    document.erase("$schema");
  }
  spellOutAggregators(document);
  ObjectReader values(std::move(document));
  ConfigReader in(values);
  DaemonConfig config = readKeys(in);
  PSD_RETURN_IF_ERROR(values.finish());
  if (config.model && config.model->file.empty()) PSD_RETURN_IF_ERROR(checkModel(config, config.model->spec));
  LoadedConfig loaded{std::move(config), values.effective(), values.offDefault()};
  // Where it is not given, the trainers' applies.
  if (!loaded.config.groups.back().optimizerGiven) loaded.effective.erase("optimizer");
  if (loaded.config.servesOnlyVersions()) {
    std::vector<std::string> unused;
    for (const auto& [key, value] : loaded.effective.items()) {
      if (isKeyOfTraining(key)) unused.push_back(key);
    }
    for (const std::string& key : unused) loaded.effective.erase(key);
  }
  if (loaded.config.daemons.several()) loaded.config.daemons.rules = rulesText(loaded.effective);
  return loaded;
}

Result<LoadedConfig> readChanged(Json document, const std::string& assignment) {
  PSD_RETURN_IF_ERROR(applyOverride(document, assignment, isKey));
  Result<LoadedConfig> read = readDaemonConfig(std::move(document));
  const std::string key = overriddenPath(assignment);
  if (read.ok() || !key.ends_with(".type")) return read;
  // What the object has belongs to another type.
  const std::string object = key.substr(0, key.rfind('.'));
  if (!read.message().starts_with(object + ".") || read.message().starts_with(key)) return read;
  return Error{read.error().code, read.message() + "; to change all keys of '" + printable(object) +
                                      "' with its type, set the object: " + printable(object) +
                                      "={\"type\": …}"};
}

Result<LoadedConfig> loadDaemonConfig(Env& env, const std::string& path, const ConfigOverrides& overrides) {
  Json document = Json::object();
  if (!path.empty()) {
    PSD_ASSIGN_OR_RETURN(document, readJsonFile(env, path));
  }
  const Overrides flags = overridesOf(overrides);
  Json changed = document;
  PSD_RETURN_IF_ERROR(flags.apply(changed));
  Result<LoadedConfig> loaded = readDaemonConfig(std::move(changed));
  if (loaded.ok()) return loaded;
  const auto read = [](Json other) { return readDaemonConfig(std::move(other)).status(); };
  return Error{loaded.error().code, flags.origin(loaded.message(), document, path, read) + loaded.message()};
}

bool sharesWeights(const DaemonConfig& config) {
  const bool local = std::any_of(config.listen.begin(), config.listen.end(), [](const Address& address) {
    return address.kind == Address::Kind::unixSocket;
  });
  const bool live = std::all_of(config.groups.begin(), config.groups.end(),
                                [](const GroupConfig& group) { return group.policy.traits.readsLive; });
  return local && live;
}

}  // namespace psd
