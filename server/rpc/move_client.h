#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/auth/credentials.h"
#include "common/os/address.h"
#include "common/status/status.h"

namespace psd {

/// How an operator lets a model move from the daemons that serve it to others. A value type.
struct MoveOrder {
  std::vector<Address> from, to;          ///< by partition
  std::vector<std::string> toServers;     ///< of one alone that it is to go to, where trainers reach it
  std::chrono::milliseconds patience{0};  ///< for trainers to step aside
  std::chrono::milliseconds timeout{0};   ///< for all of it
  Credentials credentials;                ///< for all daemons
};

/// What came of it.
struct MoveReport {
  uint32_t trainers = 0;  ///< that stepped aside, as the lead saw them
  uint64_t parameters = 0, rows = 0;
  double asideSeconds = 0;   ///< until all had stepped aside
  double travelSeconds = 0;  ///< from then on, until the move counted
  bool before = false;       ///< the move had been made already, and the new daemons were told that it counts
  std::vector<std::string> notes;  ///< what could not be told to whom; the move counts all the same
};

/// Moves the model: until the lead of `from` says that the move counts trainers go on there whatever happens.
/// The Error says which of both it is. Blocks, and must not be called on a thread that runs an event loop.
Result<MoveReport> moveModel(const MoveOrder& order);

}  // namespace psd
