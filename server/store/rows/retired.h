#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <utility>

#include "server/store/rows/epochs.h"

namespace psd {

/// Things out of reach that guards may still look at, the oldest first. Owned by the writer.
template <class Thing>
class Retired {
 public:
  /// Takes a thing that nobody can reach any more.
  void add(Epochs& epochs, Thing thing) { things_.emplace_back(epochs.stamp(), std::move(thing)); }
  /// The oldest thing, if nobody looks at it any more.
  std::optional<Thing> take(Epochs& epochs) {
    if (things_.empty() || !epochs.passed(things_.front().first)) return std::nullopt;
    std::optional<Thing> thing(std::move(things_.front().second));
    things_.pop_front();
    return thing;
  }
  bool empty() const { return things_.empty(); }

 private:
  std::list<std::pair<uint64_t, Thing>> things_;  // empty, it takes no memory of its own
};

}  // namespace psd
