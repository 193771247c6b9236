#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace psd {

/// Whether each daemon has its own value of a top-level key. All other keys rule the model: a standby takes
/// them from its primary, and daemons that serve a model together agree in them, except `index`.
bool isOfOneDaemon(std::string_view key);

/// The configuration of a daemon under another's rules: the keys of one daemon from `own`, all others from
/// `rules`.
nlohmann::ordered_json underRules(const nlohmann::ordered_json& rules, const nlohmann::ordered_json& own);

/// The limits of a standby below its primary's, from complete configurations, as
/// "limits.table_bytes 1048576 (primary: 17179869184)".
std::vector<std::string> lowerLimits(const nlohmann::ordered_json& primarys,
                                     const nlohmann::ordered_json& own);

/// The rules in which daemons that serve a model together agree, from a complete configuration: a line
/// "policy.type: \"sync\"" for each key, in the order of the configuration.
std::string rulesText(const nlohmann::ordered_json& effective);

}  // namespace psd
