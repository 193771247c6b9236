#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace psd {

/// The keys that are of one daemon and its machine. All others rule the model: a standby takes them from its
/// primary, and daemons that serve a model together agree in them, but for `index`.
inline constexpr std::string_view kKeysOfOneDaemon[] = {
    "listen",  "http",   "auth",       "tls", "insecure", "device", "devices",     "threads",
    "spin_us", "limits", "durability", "log", "save",     "engine", "replication", "$schema"};

/// Whether a key of the top level is one of these.
bool isOfOneDaemon(std::string_view key);

/// The configuration of a daemon that goes by another's rules: of `own` the keys of one daemon, of `rules`
/// all others.
nlohmann::ordered_json underRules(const nlohmann::ordered_json& rules, const nlohmann::ordered_json& own);

/// The limits of a standby that are below its primary's, by the configurations `own` and `primarys` with all
/// defaults, as "limits.table_bytes 1048576 (primary: 17179869184)".
std::vector<std::string> lowerLimits(const nlohmann::ordered_json& primarys,
                                     const nlohmann::ordered_json& own);

/// What daemons that serve a model together agree in, of a configuration with its defaults: a line
/// "policy.type: \"sync\"" for each key, in the order of the configuration.
std::string rulesText(const nlohmann::ordered_json& effective);

}  // namespace psd
