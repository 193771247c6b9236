#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/os/env.h"
#include "common/status/status.h"
#include "server/config/daemon_keys.h"

namespace psd {

/// A valid configuration and all its keys, defaults included, as JSON.
struct LoadedConfig {
  DaemonConfig config;
  nlohmann::ordered_json effective;
  std::vector<std::string> offDefault = {};  ///< see ObjectReader::offDefault()
};

/// Checks a whole document and turns it into a configuration. Errors name the JSON path. "$schema", which
/// editors use, is ignored.
Result<LoadedConfig> readDaemonConfig(nlohmann::ordered_json document);

/// The configuration `document`, such as the effective one of a daemon, after KEY=VALUE. Errors name the JSON
/// path.
Result<LoadedConfig> readChanged(nlohmann::ordered_json document, const std::string& assignment);

/// Whether the daemon could hold the model, judging by the configuration and the model alone.
Status checkModel(const DaemonConfig& config, const ModelSpec& model);

/// What the command line sets over the file.
struct ConfigOverrides {
  std::vector<std::string> listen;       ///< --listen, repeatable: together they replace `listen`
  std::optional<std::string> http;       ///< --http: replaces `http.listen`
  std::optional<std::string> device;     ///< --device: replaces `device` and `devices`
  std::optional<std::string> index;      ///< --index: replaces `index`
  std::optional<std::string> replicaOf;  ///< --replica-of: sets `publish.from` and `publish.upstream`
  bool insecure = false;                 ///< --insecure: sets `insecure`
  std::vector<std::string> assignments;  ///< --set KEY=VALUE, in order, after those above
};

/// Reads the file at `path` (empty: no file, all defaults), applies the overrides and checks the
/// whole. Errors name the file or the flag at fault.
Result<LoadedConfig> loadDaemonConfig(Env& env, const std::string& path,
                                      const ConfigOverrides& overrides = {});

/// Whether the CPU backend shares the weights with peers on the same host, which can read them: it listens on
/// a Unix socket, and every policy allows reads of changing weights.
bool sharesWeights(const DaemonConfig& config);

}  // namespace psd
