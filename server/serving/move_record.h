#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/types/daemon_addresses.h"

namespace psd {

inline constexpr size_t kMoveLeadAddressesMax = 16;

/// A committed move of the model to other daemons. A value type.
struct RecordedMove {
  uint64_t move = 0;   ///< the move's number; 0: the model has not moved
  DaemonAddresses to;  ///< the daemons that serve it now
  bool operator==(const RecordedMove&) const = default;
};

/// The source's lead: the process that decides whether a move is committed, and its addresses. A value type.
struct MoveLead {
  uint64_t daemon = 0;  ///< 0: unknown
  std::vector<std::string> addresses;
  bool operator==(const MoveLead&) const = default;
};

/// The outcome of a move, as reported by the source's lead.
enum class MoveOutcome : uint8_t {
  unknown,    ///< the process asked is not the one that sent the model
  underWay,   ///< it may still be committed
  stays,      ///< it was aborted for good
  committed,  ///< the model has moved
};

/// For messages: daemons separated by blanks, the addresses of one by commas.
std::string addressesText(const DaemonAddresses& daemons);

}  // namespace psd
