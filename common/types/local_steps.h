#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/types/inner_optimizer.h"

namespace psd {

/// How trainers work under a policy that lets them take steps by themselves between two exchanges. What they
/// push then is w_start − w (local SGD, DiLoCo), or w̃ − w (EASGD, with the parameters w̃ that they have just
/// pulled), in place of a gradient. A value type.
struct LocalSteps {
  uint64_t period = 0;  ///< steps between two exchanges; 0: none, every gradient is pushed
  double rate = 0;      ///< learning rate of these steps, which are plain SGD unless there is an `inner`
  double alpha = 0;  ///< EASGD: w ← w − alpha · (w − w̃). 0: the next steps begin at what is pulled then
  /// DiLoCo: what the steps are of; step s (from 1) after a pull of version v has the rate of step
  /// stepsBefore(v) + s.
  std::optional<InnerOptimizer> inner = {};
  /// A round may be about to close before the trainer has taken `period` steps: Client::roundDue() tells.
  bool endsEarly = false;
  /// DiLoCo: the shards are in so many fragments with rounds of their own, of which one is pushed at the end
  /// of each slot; slot k (from 0) is of fragment k % fragments and ends with step slotEnd(k) of the run.
  uint32_t fragments = 1;
  bool ofGroups = false;    ///< each fragment is a group of the daemon's configuration, and not planned
  uint32_t delay = 0;       ///< steps that go on while a push is under way; below the steps of any slot
  double blend = 0;         ///< share of the trainer's own parameters in what it goes on with after a push
  std::string deltas = {};  ///< name of the codec in which pulls are differences; empty: they are not

  uint32_t arrivals = 1;  ///< updates that count as a round: more than 1 where each push is an update

  /// Steps of the run, those of one learner, that are in version v of the parameters.
  uint64_t stepsBefore(uint64_t version) const {
    return version / arrivals * period + version % arrivals * period / arrivals;
  }
  /// Whether pushes are of fragments, or steps go on while one is under way.
  bool streams() const { return fragments > 1 || delay > 0; }
  uint64_t slotEnd(uint64_t slot) const {
    return slot / fragments * period + (slot % fragments + 1) * period / fragments;
  }

  bool operator==(const LocalSteps&) const = default;
};

/// What somebody who takes steps by itself is told in the midst of them.
enum class RoundDue {
  /// What it has is to be pushed after the step that it is at: its round has a quorum, and a grace runs; or
  /// has closed, and what comes late counts; or without rounds, it has taken as many steps as it is to.
  closing,
  closed,  ///< its round has: what is pushed for it is dropped
};

}  // namespace psd
