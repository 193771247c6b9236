#include "trainer/lab/turns.h"

namespace psd {

Turns::Turns(uint32_t trainers) : places_(trainers) {}

void Turns::yieldTurn(Place& place, State state) {
  place.state = state;
  yielded_.release();
  if (state != State::ended) place.go.acquire();
}

bool Turns::sleep(Rank rank, double time) {
  if (over_) return false;
  Place& place = places_[rank.value];
  place.wake = now_ + time;
  yieldTurn(place, State::sleeps);
  return !over_;
}

void Turns::awaitCall(Rank rank) { yieldTurn(places_[rank.value], State::calls); }

void Turns::end(Rank rank) { yieldTurn(places_[rank.value], State::ended); }

void Turns::run(Rank rank) {
  places_[rank.value].go.release();
  yielded_.acquire();
}

std::optional<Rank> Turns::firstToWake() const {
  std::optional<Rank> next;
  for (const Rank rank : in(State::sleeps)) {
    if (!next || wakesAt(rank) < wakesAt(*next)) next = rank;
  }
  return next;
}

std::vector<Rank> Turns::in(State state) const {
  std::vector<Rank> ranks;
  for (uint32_t rank = 0; rank < places_.size(); rank++) {
    if (places_[rank].state == state) ranks.push_back(Rank{rank});
  }
  return ranks;
}

}  // namespace psd
