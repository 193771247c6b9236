#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace psd {

/// The JSON Schema of a configuration, made from the declarations of its keys. Beside the standard keywords a
/// key has "x-live" where it may change while the daemon runs, and "x-of-daemon" where each daemon has its
/// own value; what lies in it does too.
const nlohmann::ordered_json& configSchema();

/// Whether a configuration may have a key at this path, such as "optimizer.lr".
bool isKey(std::string_view path);

/// Whether the key at this path, such as "groups[2].optimizer.lr", may change while the daemon runs.
bool isLive(std::string_view path);

/// The top-level keys of which each daemon has its own values.
const std::vector<std::string>& keysOfOneDaemon();

/// A key that KEY=VALUE on a command line can set. A value type.
struct SettableKey {
  std::string path;
  std::vector<std::string> choices;  ///< values that have names
  bool live = false;
};

/// All of them, in the order of the reference.
std::vector<SettableKey> settableKeys();

}  // namespace psd
