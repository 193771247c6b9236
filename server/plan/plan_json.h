#pragma once

#include <string>
#include <string_view>

#include "server/plan/plan.h"

namespace psd {

/// The document. Plans that differ have different texts.
///
///     {"format": "psd plan", "format_version": 1, "proposal": "5be1…", "model": "9a3c…", "ended": false,
///      "shards": [{"count": 4, "group": 0}],
///      "groups": [{"epoch": 7, "history": "77aa…", "primary": "3f2a…", "standby": "81c0…"}],
///      "daemons": {"3f2a…": ["tcp://10.0.0.1:5500"], "81c0…": ["tcp://10.0.0.2:5500",
///      "unix:///run/psd.sock"]}}
///
/// Numbers that are drawn, and the model's signature, are 16 hexadecimal digits. `model` is left out while
/// there is none, `standby` where there is none. `plan` is a valid one.
std::string planText(const Plan& plan);

/// Reads a document, of which nothing is passed over. The error, on one line, begins with "the plan: " and
/// the JSON path.
Result<Plan> parsePlan(std::string_view text);

}  // namespace psd
