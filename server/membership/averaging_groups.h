#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "common/types/all_reduce.h"
#include "server/membership/trainer.h"

namespace psd {

/// Forms the averaging groups: the trainers that average their gradients, one group after the other, each
/// with a generation.
///
/// A group is formed of the waiting trainers: when every joined trainer waits, or `patience` after the first
/// member of the current group began to wait (a failed step makes a member wait). A trainer that has just
/// joined starts no such deadline; the members see wanted() and come after their step. The first group waits
/// for `startTrainers`, unless a trainer waits that was in an earlier group (before the daemon was restarted
/// or the policy reloaded).
///
/// Pure: no threads, locks or clocks. The caller serializes the calls; times must not decrease.
class AveragingGroups {
 public:
  /// A trainer's address, and the last group that it was in (0: none).
  struct Waiter {
    std::string host;
    uint16_t port = 0;
    uint64_t after = 0;
  };

  using TimePoint = std::chrono::steady_clock::time_point;
  static constexpr size_t kKept = 64;  ///< earlier groups whose version is remembered

  /// `firstGeneration` must be above 0.
  AveragingGroups(uint64_t firstGeneration, std::chrono::milliseconds patience, uint32_t startTrainers)
      : next_(firstGeneration), patience_(patience), startTrainers_(startTrainers) {}

  void join(SessionId session, Rank rank) { live_[session] = rank; }
  /// A trainer has departed; unknown ones are ignored.
  void leave(SessionId session);
  /// A joined trainer waits for the next group; false: it is not joined.
  bool wait(SessionId session, const Waiter& waiter, TimePoint now);

  /// Whether a group can be formed now.
  bool due(TimePoint now) const;
  /// Forms the due group of the waiting trainers, ordered by rank. `version`: the model's version after the
  /// previous group.
  std::vector<std::pair<SessionId, AveragingMember>> form(Version version);

  /// Generation of the newest group; 0: none yet.
  uint64_t generation() const { return generation_; }
  const std::vector<std::pair<SessionId, AveragingMember>>& members() const { return members_; }
  /// Whether this trainer pushes its group's average.
  bool leads(SessionId session) const { return !members_.empty() && members_.front().first == session; }
  /// Whether a trainer waits while a group exists.
  bool wanted() const { return !waiting_.empty() && !members_.empty(); }
  /// The model's version after the group of that generation; 0: still active, or no longer known.
  Version reachedBy(uint64_t generation) const;

  /// Since when a trainer waits; nothing: none does.
  std::optional<TimePoint> waitingSince() const { return since_; }
  /// The waiting trainers, and the trainers that they wait for.
  std::vector<SessionId> waiters() const;
  std::vector<SessionId> awaited() const;
  /// Number of trainers missing for the first group.
  uint32_t joinsNeeded() const;

 private:
  bool isMember(SessionId session) const;

  uint64_t next_;
  const std::chrono::milliseconds patience_;
  const uint32_t startTrainers_;
  uint64_t generation_ = 0;
  std::map<SessionId, Rank> live_;
  std::map<SessionId, AveragingMember> waiting_;
  std::vector<std::pair<SessionId, AveragingMember>> members_;  // of the newest group; may have departed
  std::optional<TimePoint> since_, hurried_;                    // the first trainer, the first member, waits
  std::deque<std::pair<uint64_t, Version>> reached_;            // by earlier groups
};

}  // namespace psd
