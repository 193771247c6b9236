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

/// An operator's order to move a model to other daemons. A value type.
struct MoveOrder {
  std::vector<Address> from, to;          ///< by partition
  std::vector<std::string> toServers;     ///< for a single target: its addresses for trainers
  std::chrono::milliseconds patience{0};  ///< for trainers to quiesce
  std::chrono::milliseconds timeout{0};   ///< for the whole move
  Credentials credentials;                ///< for all daemons
};

/// Outcome of a move.
struct MoveReport {
  uint32_t trainers = 0;  ///< quiesced trainers, as seen by the lead
  uint64_t parameters = 0, rows = 0;
  uint64_t versions = 0;       ///< published versions that were copied
  double versionSeconds = 0;   ///< for copying them before trainers were asked to quiesce
  double quiesceSeconds = 0;   ///< until all trainers had quiesced
  double transferSeconds = 0;  ///< from then until the commit
  bool before = false;  ///< the move had already been committed; the target daemons were notified again
  std::vector<std::string> notes;  ///< notifications that failed; the move is committed all the same
};

/// Moves the model. Until the lead of `from` commits the move, trainers continue there whatever happens; the
/// Error says whether the move was committed. Blocks; must not be called on a thread that runs an event loop.
Result<MoveReport> moveModel(const MoveOrder& order);

}  // namespace psd
