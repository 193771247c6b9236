#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <semaphore>
#include <vector>

#include "common/types/ids.h"

namespace psd {

/// Whose turn it is: of several trainers' threads one runs at a time, and while one does the director's
/// thread stands. What one thread wrote before it gave its turn back, the next one sees. Virtual time is what
/// the director makes it.
///
/// The functions of a trainer are called on its thread, those of the director on the director's.
class Turns {
 public:
  enum class State {
    sleeps,  ///< until its time
    calls,   ///< a call of its client is under way
    ended,   ///< its thread runs no more
  };

  explicit Turns(uint32_t trainers);

  // --- Of a trainer ------------------------------------------------------------------------------------
  /// Before anything else.
  void awaitFirst(Rank rank) { places_[rank.value].go.acquire(); }
  /// Lets time pass. False: the run is over.
  bool sleep(Rank rank, double time);
  /// Gives the turn back while a call is under way; returns when it is worth looking whether that is done.
  void awaitCall(Rank rank);
  /// The last that the thread does.
  void end(Rank rank);
  /// Whether the run is over.
  bool over() const { return over_; }

  // --- Of the director ---------------------------------------------------------------------------------
  /// Lets the trainer run until it gives its turn back.
  void run(Rank rank);
  /// Who of the sleepers wakes first; of several the lowest rank. Nothing: none sleeps.
  std::optional<Rank> nextSleeper() const;
  double wakesAt(Rank rank) const { return places_[rank.value].wake; }
  State state(Rank rank) const { return places_[rank.value].state; }
  std::vector<Rank> in(State state) const;
  void setNow(double now) { now_ = now; }
  double now() const { return now_; }
  /// From now on sleep() says that the run is over.
  void declareOver() { over_ = true; }

 private:
  struct Place {
    std::binary_semaphore go{0};
    State state = State::sleeps;
    double wake = 0;
  };
  void giveBack(Place& place, State state);

  std::deque<Place> places_;  // a semaphore does not move
  std::binary_semaphore back_{0};
  double now_ = 0;
  bool over_ = false;
};

}  // namespace psd
