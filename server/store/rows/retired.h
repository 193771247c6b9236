#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <utility>

#include "server/store/rows/epochs.h"

namespace psd {

/// Unreachable things that guards may still access, the oldest first. Owned by the writer.
template <class Thing>
class Retired {
 public:
  /// Adds a thing that has become unreachable for new readers.
  void add(Epochs& epochs, Thing thing) { things_.emplace_back(epochs.stamp(), std::move(thing)); }
  /// Removes and returns the oldest thing if no guard can access it any more.
  std::optional<Thing> take(Epochs& epochs) {
    if (things_.empty() || !epochs.passed(things_.front().first)) return std::nullopt;
    std::optional<Thing> thing(std::move(things_.front().second));
    things_.pop_front();
    return thing;
  }
  bool empty() const { return things_.empty(); }

 private:
  std::list<std::pair<uint64_t, Thing>> things_;  // a list, because an empty one allocates nothing
};

}  // namespace psd
