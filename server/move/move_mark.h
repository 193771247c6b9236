#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/os/env.h"
#include "server/serving/move_record.h"

namespace psd {

/// Files beside a daemon's checkpoints that record a move of the model between daemons.
inline constexpr std::string_view kMovedName = "moved.json";        ///< the model has moved away
inline constexpr std::string_view kArrivingName = "arriving.json";  ///< the model has arrived, uncommitted

/// The record of a move. A value type.
struct MoveMark {
  uint64_t move = 0;
  DaemonAddresses to;  ///< moved away: the daemons that serve the model
  MoveLead lead = {};  ///< arrived: the source's lead
};

/// Nothing if there is no such file. Blocks.
Result<std::optional<MoveMark>> readMoveMark(Env& env, const std::string& folder, std::string_view name);
/// Writes it durably. Blocks.
Status writeMoveMark(Env& env, const std::string& folder, std::string_view name, const MoveMark& mark);
/// Removes it durably; no effect if there is none. Blocks.
Status removeMoveMark(Env& env, const std::string& folder, std::string_view name);

}  // namespace psd
