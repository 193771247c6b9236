#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "common/os/env.h"
#include "common/types/ids.h"

namespace psd {

inline constexpr std::string_view kDepartedName = "trainers.json";

/// Which ranks of a world have been in and are no more. A value type; on the disk the file kDepartedName of a
/// folder, which docs/checkpoint_format.md describes byte by byte.
struct Departed {
  uint32_t worldSize = 0;
  std::set<Rank> ranks;
  bool operator==(const Departed&) const = default;
};

std::string formatDeparted(const Departed& departed);
/// The error names `origin` and what is wrong.
Result<Departed> parseDeparted(std::string_view text, const std::string& origin);

/// Where that file is.
std::string departedPath(const std::string& folder);
/// Its bytes; nothing when there is none. Blocks, like the others.
Result<std::optional<std::string>> readDepartedText(Env& env, const std::string& folder);
/// What they say.
Result<std::optional<Departed>> readDeparted(Env& env, const std::string& folder);
/// Makes the file say that, at once and for good.
Status writeDeparted(Env& env, const std::string& folder, const Departed& departed);
/// Removes the file, if it is there, for good.
Status removeDeparted(Env& env, const std::string& folder);

}  // namespace psd
