#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/types/ids.h"

namespace psd {

/// Identifies a trainer process across its sessions and the daemons that it joins. A value type.
struct TrainerProcess {
  Rank rank;
  uint64_t incarnation = 0;  ///< a random number that the process draws once; 0: none
  auto operator<=>(const TrainerProcess&) const = default;
};

/// Trainers whose gradients are in the average that another trainer pushes; null: none.
using SharedAverage = std::shared_ptr<const std::vector<TrainerProcess>>;

/// A trainer in one of its sessions, as policies know it. A value type.
struct TrainerRef {
  SessionId session;
  Rank rank;
  uint64_t incarnation = 0;  ///< identifies the trainer's process; 0: not given
  bool bridges = false;      ///< the bridge: pushes differences, and is unknown to policies
};

}  // namespace psd
