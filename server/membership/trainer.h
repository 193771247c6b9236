#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/types/ids.h"

namespace psd {

/// One process of a trainer, over its sessions and over the daemons that it is in at. A value type.
struct TrainerProcess {
  Rank rank;
  uint64_t incarnation = 0;  ///< a random number that the process draws once; 0: it has none
  auto operator<=>(const TrainerProcess&) const = default;
};

/// Trainers whose gradients are in the average that another one pushes; null: there are none.
using SharedAverage = std::shared_ptr<const std::vector<TrainerProcess>>;

/// A trainer in one of its sessions, as policies know it. A value type.
struct TrainerRef {
  SessionId session;
  Rank rank;
  uint64_t incarnation = 0;  ///< names the process of the trainer; 0: it did not say
};

}  // namespace psd
