#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "server/policy/sync_rounds.h"

namespace psd {

/// The clocks of bounded staleness (SSP; Ho et al. 2013): a trainer's clock counts its finished steps, and
/// who is more than `bound` ahead of the slowest live trainer waits in its next read. Bound 0 is lock-step.
///
/// Who joins begins at the slowest clock (the first one, or the first after everybody left, where the slowest
/// was last), so that nobody who could read before must wait for the steps that it did not make. Who leaves
/// holds nobody back. The slowest trainer never waits, so there is always one that moves on, and each wait
/// ends when the slowest ones have stepped or left.
///
/// Pure: no threads, locks or clocks of the wall. Owned by whoever serialises the calls.
class StepClocks {
 public:
  /// Trainers that waited and may read now; ascending.
  using Released = std::vector<SessionId>;

  /// One trainer in its read.
  struct Wait {
    SessionId session;
    TimePoint since;
    uint64_t ahead = 0;              ///< clocks, of the slowest
    std::vector<SessionId> slowest;  ///< whom it waits for; ascending
  };

  explicit StepClocks(uint64_t bound) : bound_(bound) {}

  uint64_t bound() const { return bound_; }
  /// The clock of the slowest live trainer; its last value when no trainer is in.
  uint64_t slowest() const { return slowest_; }
  /// The trainer's clock; nothing for a trainer that is not in.
  std::optional<uint64_t> clock(SessionId session) const;
  size_t present() const { return clocks_.size(); }

  void join(SessionId session);
  /// The trainer left or is lost; unknown ones are ignored.
  Released leave(SessionId session);
  /// The trainer has finished a step; unknown ones are ignored.
  Released advance(SessionId session);
  /// Whether the trainer may read now. If not it waits, until it is among those released, leaves, or asks
  /// again in vain. Who is not in (an observer) may always read.
  bool read(SessionId session, TimePoint now);

  std::vector<Wait> waits() const;

 private:
  bool within(uint64_t clock) const { return clock - slowest_ <= bound_; }
  Released release();

  const uint64_t bound_;
  uint64_t slowest_ = 0;
  std::map<SessionId, uint64_t> clocks_;
  std::multiset<uint64_t> sorted_;  // the clocks of clocks_
  std::map<SessionId, TimePoint> waiting_;
};

}  // namespace psd
