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

/// Which trainers average their gradients together: the groups, one after the other, each with a generation.
///
/// A group is formed of those that wait for one. It waits for every trainer that is in, for the members of
/// the group at work by `patience` at most, from when the first of them has come to wait: a step that broke
/// is what brings them. A newcomer alone hurries nobody; the members are to see wanted(), and come after
/// their step. The first group waits for `startTrainers`, unless somebody comes who was in a group of before:
/// of a daemon that was started again since, or of a policy that was reloaded.
///
/// Pure: no threads, locks or clocks. Owned by whoever serialises the calls; times must not go back.
class AveragingGroups {
 public:
  /// Where a trainer is reached, and the group that it was in last; 0: none.
  struct Waiter {
    std::string host;
    uint16_t port = 0;
    uint64_t after = 0;
  };

  using TimePoint = std::chrono::steady_clock::time_point;
  static constexpr size_t kKept = 64;  ///< groups before, of which it is known what they reached

  /// `firstGeneration` is above 0.
  AveragingGroups(uint64_t firstGeneration, std::chrono::milliseconds patience, uint32_t startTrainers)
      : next_(firstGeneration), patience_(patience), startTrainers_(startTrainers) {}

  void join(SessionId session, Rank rank) { live_[session] = rank; }
  /// A trainer left or is lost; unknown ones are ignored.
  void leave(SessionId session);
  /// A trainer that is in waits for the next group; false: it is not in.
  bool wait(SessionId session, const Waiter& waiter, TimePoint now);

  /// Whether a group is to be formed now.
  bool due(TimePoint now) const;
  /// Forms the group that is due, of those that wait, by rank. `version`: that the model has by the group
  /// before.
  std::vector<std::pair<SessionId, AveragingMember>> form(Version version);

  /// Of the newest group; 0: there was none.
  uint64_t generation() const { return generation_; }
  const std::vector<std::pair<SessionId, AveragingMember>>& members() const { return members_; }
  /// Whether this trainer pushes what its group averages.
  bool leads(SessionId session) const { return !members_.empty() && members_.front().first == session; }
  /// Whether somebody waits while members of the group are at work.
  bool wanted() const { return !waiting_.empty() && !members_.empty(); }
  /// What the group of that generation brought the model to; 0: it is at work, or is not known any more.
  Version reachedBy(uint64_t generation) const;

  /// Since when somebody waits; nothing: nobody does.
  std::optional<TimePoint> waitingSince() const { return since_; }
  /// Who waits, and who is waited for.
  std::vector<SessionId> waiters() const;
  std::vector<SessionId> awaited() const;
  /// So many trainers are to come before the first group.
  uint32_t joinsNeeded() const;

 private:
  bool isMember(SessionId session) const;

  uint64_t next_;
  const std::chrono::milliseconds patience_;
  const uint32_t startTrainers_;
  uint64_t generation_ = 0;
  std::map<SessionId, Rank> live_;
  std::map<SessionId, AveragingMember> waiting_;
  std::vector<std::pair<SessionId, AveragingMember>> members_;  // of the newest group, perhaps gone since
  std::optional<TimePoint> since_, hurried_;          // the first of all, and of the members, came to wait
  std::deque<std::pair<uint64_t, Version>> reached_;  // by groups before
};

}  // namespace psd
