#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "server/policy/round_moments.h"

namespace psd {

/// The moments of rounds that wait for the thread that copies them. Of the rounds only those are taken whose
/// number is a multiple of `every`, so that all daemons take the same without asking each other. A group is
/// held for kHoldMax at most; then its training continues, and that moment is lost here.
///
/// Numbers of a group rise from open() to close(): a round whose number is not above that of the last one is
/// left out. A trainer that takes the place of another while two daemons are a round apart names two rounds
/// of one of them alike, and nothing was lost that would make the first one's version wrong. Thread-safe.
class RoundQueue final : public RoundMoments {
 public:
  static constexpr std::chrono::seconds kHoldMax{10};

  /// A parameter group, held at the end of a round.
  struct Held {
    uint32_t group = 0;
    RoundMoment moment;
    ShardLock::Guard applying;
    std::chrono::steady_clock::time_point since;
  };

  /// From now on moments are taken; `wake` is called after each, on any thread.
  void open(uint64_t every, std::function<void()> wake);
  void follow(uint64_t every);
  /// Releases what is held, and takes no more until open().
  void close();

  void applied(uint32_t group, RoundMoment moment, ShardLock::Guard applying) override;
  void unnamed(uint32_t group) override;
  void expire(std::chrono::steady_clock::time_point now) override;
  /// The next group, in the order in which they were held.
  std::optional<Held> take();
  bool empty() const;
  /// Why the newest rounds that should be in a version are in none, by their names; empty: they are.
  std::string fault() const;

 private:
  mutable std::mutex mutex_;  // guards the members below
  uint64_t every_ = 0;
  std::function<void()> wake_;  // null: closed
  std::deque<Held> held_;
  struct Names {
    uint64_t newest = 0;    // number of the last moment that was taken
    uint64_t unnamed = 0;   // rounds without a name since the last one with a name
    uint64_t repeated = 0;  // number of the last round that was left out since; 0: none
  };
  std::map<uint32_t, Names> names_;  // by group
};

}  // namespace psd
