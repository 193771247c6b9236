#include "server/config/daemon_config.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "common/config/json_file.h"
#include "common/text/text.h"
#include "server/config/addresses.h"
#include "server/config/model_rules.h"

namespace psd {
namespace {

using Json = nlohmann::ordered_json;

/// A change by the command line, for errors.
struct Override {
  std::string flag;  ///< as the user wrote it
  std::string key;   ///< JSON path that it sets
};

Result<std::vector<Override>> applyOverrides(Json& document, const ConfigOverrides& overrides) {
  std::vector<Override> applied;
  if (!document.is_object()) return applied;  // readDaemonConfig() says so
  const auto notText = [](const std::string& flag, const std::string& value) {
    return Error{ErrorCode::invalidArgument, flag + " " + printable(value) + ": the value is not UTF-8 text"};
  };
  for (const std::string& address : overrides.listen) {
    if (!isUtf8(address)) return notText("--listen", address);
  }
  if (overrides.http && !isUtf8(*overrides.http)) return notText("--http", *overrides.http);
  if (overrides.device && !isUtf8(*overrides.device)) return notText("--device", *overrides.device);
  if (!overrides.listen.empty()) {
    document["listen"] = overrides.listen;
    for (size_t i = 0; i < overrides.listen.size(); i++) {
      applied.push_back({"--listen " + printable(overrides.listen[i]), elementPath("listen", i)});
    }
  }
  if (overrides.http) {
    if (Status status = applyOverride(document, "http.listen=[]"); !status.ok()) {
      return Error{status.error().code, "--http: " + status.message()};
    }
    document["http"]["listen"] = {*overrides.http};
    applied.push_back({"--http " + printable(*overrides.http), elementPath("http.listen", 0)});
  }
  if (overrides.insecure) {
    document["insecure"] = true;
    applied.push_back({"--insecure", "insecure"});
  }
  if (overrides.device) {
    document.erase("devices");
    document["device"] = *overrides.device;
    applied.push_back({"--device " + printable(*overrides.device), "device"});
  }
  if (overrides.index) {
    if (Status status = applyOverride(document, "index=" + *overrides.index); !status.ok()) {
      return Error{status.error().code, "--index: " + status.message()};
    }
    applied.push_back({"--index " + printable(*overrides.index), "index"});
  }
  for (const std::string& assignment : overrides.assignments) {
    if (Status status = applyOverride(document, assignment); !status.ok()) {
      return Error{status.error().code, "--set " + status.message()};
    }
    applied.push_back({"--set " + printable(assignment), assignment.substr(0, assignment.find('='))});
  }
  return applied;
}

/// Origin of the value at fault: the last flag that set it or an enclosing value, else the file.
std::string blame(const std::string& message, const std::vector<Override>& applied, const std::string& path) {
  for (size_t i = applied.size(); i-- > 0;) {
    const Override& override = applied[i];
    if (!message.starts_with(override.key) || message.size() <= override.key.size()) continue;
    if (std::string_view(":.[").find(message[override.key.size()]) != std::string_view::npos) {
      return override.flag + ": ";
    }
  }
  return path.empty() ? "" : path + ": ";
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

Result<LoadedConfig> readDaemonConfig(Json document) {
  if (document.is_object()) document.erase("$schema");
  spellOutAggregators(document);
  ObjectReader values(std::move(document));
  ConfigReader in(values);
  DaemonConfig config = readKeys(in);
  PSD_RETURN_IF_ERROR(values.finish());
  if (config.model && config.model->file.empty()) {
    PSD_RETURN_IF_ERROR(assignGroups(config.model->spec, config.groups).status());
    PSD_RETURN_IF_ERROR(assignTables(config.model->spec, config.tables).status());
  }
  LoadedConfig loaded{std::move(config), values.effective()};
  if (loaded.config.daemons.several()) loaded.config.daemons.rules = rulesText(loaded.effective);
  return loaded;
}

Result<LoadedConfig> loadDaemonConfig(Env& env, const std::string& path, const ConfigOverrides& overrides) {
  Json document = Json::object();
  if (!path.empty()) {
    PSD_ASSIGN_OR_RETURN(document, readJsonFile(env, path));
  }
  PSD_ASSIGN_OR_RETURN(std::vector<Override> applied, applyOverrides(document, overrides));
  Result<LoadedConfig> loaded = readDaemonConfig(std::move(document));
  if (loaded.ok()) return loaded;
  return Error{loaded.error().code, blame(loaded.message(), applied, path) + loaded.message()};
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
