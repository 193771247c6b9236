#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/os/env.h"
#include "server/membership/roster.h"

namespace psd {

inline constexpr std::string_view kDepartedName = "trainers.json";

/// The ranks that have come and gone, as the file kDepartedName of a folder holds them, which
/// docs/checkpoint_format.md describes byte by byte.
std::string formatDeparted(const Departed& departed);
/// The error names `origin` and what is wrong.
Result<Departed> parseDeparted(std::string_view text, const std::string& origin);

/// The path of the file kDepartedName in `folder`.
std::string departedPath(const std::string& folder);
/// The bytes of the file kDepartedName; nothing when there is no such file. Blocks.
Result<std::optional<std::string>> readDepartedText(Env& env, const std::string& folder);
/// Reads and parses the file kDepartedName; nothing when there is no such file. Blocks.
Result<std::optional<Departed>> readDeparted(Env& env, const std::string& folder);
/// Writes the file kDepartedName, atomically and so that it outlasts a crash. Blocks.
Status writeDeparted(Env& env, const std::string& folder, const Departed& departed);
/// Removes the file kDepartedName, if it is there, so that it stays away after a crash. Blocks.
Status removeDeparted(Env& env, const std::string& folder);

}  // namespace psd
