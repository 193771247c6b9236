#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/os/env.h"
#include "server/membership/roster.h"

namespace psd {

inline constexpr std::string_view kDepartedName = "trainers.json";

/// The finished ranks, as stored in the file kDepartedName of a folder; docs/reference/checkpoint_format.md
/// describes the format byte by byte.
std::string formatDeparted(const Departed& departed);
/// Errors name `origin` and the problem.
Result<Departed> parseDeparted(std::string_view text, const std::string& origin);

/// The path of the file kDepartedName in `folder`.
std::string departedPath(const std::string& folder);
/// The bytes of the file kDepartedName; nullopt if the file does not exist. Blocks.
Result<std::optional<std::string>> readDepartedText(Env& env, const std::string& folder);
/// Reads and parses the file kDepartedName; nullopt if the file does not exist. Blocks.
Result<std::optional<Departed>> readDeparted(Env& env, const std::string& folder);
/// Writes the file kDepartedName atomically and durably. Blocks.
Status writeDeparted(Env& env, const std::string& folder, const Departed& departed);
/// Removes the file kDepartedName durably, if it exists. Blocks.
Status removeDeparted(Env& env, const std::string& folder);

}  // namespace psd
