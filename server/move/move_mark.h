#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/os/env.h"
#include "common/types/daemon_places.h"

namespace psd {

/// Files beside the checkpoints of a daemon that tell of a move of the model to other daemons.
inline constexpr std::string_view kMovedName = "moved.json";        ///< it is not here any more
inline constexpr std::string_view kArrivingName = "arriving.json";  ///< it is here, and may not count

inline constexpr size_t kMoveLeadAddressesMax = 16;

/// The process that decides whether a move counts, the lead of the daemons of before, and where it is
/// reached. A value type.
struct MoveLead {
  uint64_t daemon = 0;  ///< 0: not known
  std::vector<std::string> addresses;
  bool operator==(const MoveLead&) const = default;
};

/// Which move it is. A value type.
struct MoveMark {
  uint64_t move = 0;
  DaemonPlaces to;     ///< of a model that has moved: the daemons that serve it
  MoveLead lead = {};  ///< of one that has come
};

/// Nothing where there is no such file. Blocks.
Result<std::optional<MoveMark>> readMoveMark(Env& env, const std::string& folder, std::string_view name);
/// Writes it, to last. Blocks.
Status writeMoveMark(Env& env, const std::string& folder, std::string_view name, const MoveMark& mark);
/// Removes it, to last; nothing where there is none. Blocks.
Status removeMoveMark(Env& env, const std::string& folder, std::string_view name);

}  // namespace psd
