#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/policy/sync_rounds.h"

namespace psd {

/// The clocks of bounded staleness (SSP; Ho et al. 2013): a trainer's clock counts its finished steps, and a
/// trainer more than `bound` ahead of the slowest live trainer waits in its next read. Bound 0 is lock-step.
///
/// A trainer that joins starts at the slowest clock, or at its last value if no trainer is joined, so that a
/// join never makes others wait. Departed trainers hold no reads back. The slowest trainer never waits, so
/// there is always progress, and each wait ends when the slowest trainers have stepped or departed.
///
/// Pure: no threads, locks or wall clocks. Not thread-safe: the owner serializes the calls.
class StepClocks {
 public:
  /// Trainers whose wait has ended; ascending.
  using Released = std::vector<SessionId>;

  /// A trainer whose read waits.
  struct Wait {
    SessionId session;
    TimePoint since;
    uint64_t ahead = 0;              ///< steps ahead of the slowest
    std::vector<SessionId> slowest;  ///< trainers it waits for; ascending
  };

  explicit StepClocks(uint64_t bound) : bound_(bound) {}

  uint64_t bound() const { return bound_; }
  /// The clock of the slowest live trainer; its last value if no trainer is joined.
  uint64_t slowest() const { return slowest_; }
  /// The trainer's clock; nullopt for a trainer that is not joined.
  std::optional<uint64_t> clock(SessionId session) const;
  size_t present() const { return clocks_.size(); }

  void join(SessionId session);
  /// The trainer has departed; unknown sessions are ignored.
  Released leave(SessionId session);
  /// The trainer has finished a step; unknown sessions are ignored.
  Released advance(SessionId session);
  /// Whether the trainer may read now. If not, it is recorded as waiting until it is among the released
  /// trainers or departs. Sessions that are not joined (observers) may always read.
  bool read(SessionId session, TimePoint now);

  std::vector<Wait> waits() const;
  /// A violated invariant; empty: none.
  std::string checkInvariants() const;

 private:
  bool within(uint64_t clock) const { return clock - slowest_ <= bound_; }
  Released release();

  const uint64_t bound_;
  uint64_t slowest_ = 0;
  std::map<SessionId, uint64_t> clocks_;
  std::multiset<uint64_t> sorted_;  // the values of clocks_
  std::map<SessionId, TimePoint> waiting_;
};

}  // namespace psd
