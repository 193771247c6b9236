#pragma once

#include <cstdint>
#include <optional>

#include "common/types/ids.h"
#include "common/types/learner_paces.h"
#include "trainer/client/api/client.h"
#include "trainer/lab/turns.h"

namespace psd {

/// The number of local steps that virtual trainers of different speeds take before they push, under a policy
/// without rounds and with `dynamic_period`. Does in virtual time what the daemon does by its clock, so that
/// it is the same in each run. Used by the thread that has the turn.
class VirtualPaces {
 public:
  explicit VirtualPaces(const Turns& turns) : turns_(turns) {}

  /// Initializes from a trainer's JoinInfo, which is the same for all.
  void initialize(const JoinInfo& joined);
  /// Whether the number of local steps is decided here; true after initialize() for such a policy.
  bool enabled() const { return paces_.has_value(); }

  // Require enabled():
  void begins(Rank rank) { paces_->begins(sessionOf(rank), now()); }
  void pushes(Rank rank, uint32_t steps) { paces_->pushes(sessionOf(rank), steps, now()); }
  bool due(Rank rank) const;

 private:
  /// Each rank has one session.
  static SessionId sessionOf(Rank rank) { return SessionId{rank.value}; }
  LearnerPaces::TimePoint now() const;

  const Turns& turns_;
  std::optional<LearnerPaces> paces_;
};

}  // namespace psd
