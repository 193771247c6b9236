#pragma once

#include <string>
#include <string_view>

#include "server/plan/plan.h"

namespace psd {

/// The document. Plans that differ have different texts.
///
///     {"format": "psd plan", "format_version": 1, "proposal": "5be1…", "ended": false, "shards": [],
///      "groups": [{"epoch": 7, "history": "77aa…", "primary": "3f2a…", "standby": "81c0…"}],
///      "daemons": {"3f2a…": ["tcp://10.0.0.1:5500"], "81c0…": ["tcp://10.0.0.2:5500",
///      "unix:///run/psd.sock"]}}
///
/// Numbers that are drawn are 16 hexadecimal digits. `standby` is left out where there is none; there is one
/// group, and `shards` is empty. With `ended` true and no move, `saved` tells whether the last primary keeps
/// the model on its disk (left out, as older versions do: it does), and `from_folder_of` ("primary" or
/// "standby") that a daemon over such a folder wrote this where there was no plan. `plan` is a valid one.
std::string planText(const Plan& plan);

/// Reads a document, of which nothing is passed over. The error, on one line, begins with "the plan: " and
/// the JSON path.
Result<Plan> parsePlan(std::string_view text);

}  // namespace psd
