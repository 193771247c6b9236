#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <semaphore>
#include <vector>

#include "common/types/ids.h"

namespace psd {

/// Schedules the trainers' threads: one of them runs at a time, and the director's thread blocks meanwhile. A
/// handover synchronizes: a thread sees all writes made before the previous thread yielded its turn. The
/// director sets the virtual time.
///
/// Trainer functions are called on the trainer's thread, director functions on the director's.
class Turns {
 public:
  enum class State {
    sleeps,  ///< until its wake time
    calls,   ///< waits for a call of its client
    ended,   ///< its thread has ended
  };

  explicit Turns(uint32_t trainers);

  // --- Trainer functions -------------------------------------------------------------------------------
  /// Waits for the first turn; called before any other function.
  void awaitFirstTurn(Rank rank) { places_[rank.value].go.acquire(); }
  /// Sleeps for `time`, in virtual time. False: the run is over.
  bool sleep(Rank rank, double time);
  /// Yields the turn while a call is in flight; on return the caller checks whether the call is done.
  void awaitCall(Rank rank);
  /// Yields the last turn; called at the end of the thread.
  void end(Rank rank);
  /// Whether the run is over.
  bool over() const { return over_; }

  // --- Director functions ------------------------------------------------------------------------------
  /// Runs the trainer until it yields its turn.
  void run(Rank rank);
  /// The sleeping trainer that wakes first; the lowest rank of several. nullopt: none sleeps.
  std::optional<Rank> firstToWake() const;
  double wakesAt(Rank rank) const { return places_[rank.value].wake; }
  State state(Rank rank) const { return places_[rank.value].state; }
  std::vector<Rank> in(State state) const;
  void setNow(double now) { now_ = now; }
  double now() const { return now_; }
  /// Ends the run: sleep() returns false from now on.
  void endRun() { over_ = true; }

 private:
  struct Place {
    std::binary_semaphore go{0};
    State state = State::sleeps;
    double wake = 0;
  };
  void yieldTurn(Place& place, State state);

  std::deque<Place> places_;  // semaphores are not movable
  std::binary_semaphore yielded_{0};
  double now_ = 0;
  bool over_ = false;
};

}  // namespace psd
