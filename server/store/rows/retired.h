#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <utility>

#include "server/store/rows/epochs.h"

namespace psd {

/// Unreachable things that guards may still access, the oldest first. Owned by the writer.
template <class Item>
class Retired {
 public:
  /// Adds a thing that has become unreachable for new readers.
  void add(Epochs& epochs, Item thing) { things_.emplace_back(epochs.stamp(), std::move(thing)); }
  /// Removes and returns the oldest thing if no guard can access it any more.
  std::optional<Item> take(Epochs& epochs) {
    if (things_.empty() || !epochs.passed(things_.front().first)) return std::nullopt;
    std::optional<Item> thing(std::move(things_.front().second));
    things_.pop_front();
    return thing;
  }
  bool empty() const { return things_.empty(); }

 private:
  std::list<std::pair<uint64_t, Item>> things_;  // a list, because an empty one allocates nothing
};

}  // namespace psd
