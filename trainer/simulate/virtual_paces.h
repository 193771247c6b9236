#pragma once

#include <cstdint>
#include <optional>

#include "common/types/ids.h"
#include "common/types/learner_paces.h"
#include "trainer/client/client.h"
#include "trainer/simulate/turns.h"

namespace psd {

/// How many steps virtual learners of different speed take before they push, where they make no rounds and
/// their daemon says so (`dynamic_period`): what a daemon works out by its clock, in virtual time, so that it
/// is the same in each run. Used by whichever thread has the turn.
class VirtualPaces {
 public:
  explicit VirtualPaces(const Turns& turns) : turns_(turns) {}

  /// What a trainer was told at its join, the same for all.
  void know(const JoinInfo& joined);
  /// Whether learners are told how many steps to take.
  bool decide() const { return paces_.has_value(); }

  // Where they are:
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
