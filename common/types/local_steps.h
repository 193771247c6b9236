#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/types/inner_optimizer.h"

namespace psd {

/// How trainers take local steps between two exchanges. They then push w_start − w (local SGD, DiLoCo), or w̃
/// − w (EASGD, with the freshly pulled parameters w̃), in place of a gradient. A value type.
struct LocalSteps {
  uint64_t period = 0;  ///< steps between two exchanges; 0: none, every gradient is pushed
  double rate = 0;      ///< learning rate of the local steps, which are plain SGD without `inner`
  double alpha = 0;  ///< EASGD: w ← w − alpha · (w − w̃). 0: the next steps start from the pulled parameters
  /// DiLoCo: the optimizer of the local steps; step s (from 1) after a pull of version v has the learning
  /// rate of step stepsBefore(v) + s.
  std::optional<InnerOptimizer> inner = {};
  /// A round may close before the trainer has taken `period` steps: Client::roundDue() reports it.
  bool endsEarly = false;
  /// DiLoCo: number of fragments of the shards, each with its own rounds, of which one is pushed at the end
  /// of each slot; slot k (from 0) belongs to fragment k % fragments and ends with step slotEnd(k) of the
  /// run.
  uint32_t fragments = 1;
  bool fragmentPerGroup =
      false;           ///< each fragment is a parameter group of the daemon's configuration, not planned
  uint32_t delay = 0;  ///< steps taken while a push is in flight; below the steps of any slot
  double blend = 0;    ///< share of the trainer's own parameters in those that it continues from after a push
  std::string deltas = {};  ///< codec of pulled differences; empty: pulls are not differences

  uint32_t updatesPerRound = 1;  ///< updates per round: more than 1 where each push is an update

  /// Steps of the run, counted as those of one learner, that version v of the parameters contains.
  uint64_t stepsBefore(uint64_t version) const {
    return version / updatesPerRound * period + version % updatesPerRound * period / updatesPerRound;
  }
  /// Whether pushes cover fragments, or steps continue while a push is in flight.
  bool streams() const { return fragments > 1 || delay > 0; }
  uint64_t slotEnd(uint64_t slot) const {
    return slot / fragments * period + (slot % fragments + 1) * period / fragments;
  }

  bool operator==(const LocalSteps&) const = default;
};

/// Why a trainer should end what it computes for.
enum class RoundDue {
  /// Push after the current step: the round has a quorum, and a grace runs; or it has closed, and a late push
  /// counts.
  closing,
  closed,     ///< its round has closed: a push for it is dropped
  stepsDone,  ///< without rounds: push after the current step, with which the trainer has taken all its steps
  groupWanted,  ///< a trainer waits for the next averaging group, or that group has formed without this one
};

}  // namespace psd
