#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <utility>

#include <kj/async.h>
#include <kj/debug.h>

namespace psd {

/// The callers that follow the events, each over its own connection. Such a connection lasts as long as the
/// peer's system buffers the stream, even if no program reads it. Part of the connections is therefore closed
/// to them, and once their share is used up a new caller displaces the one that has followed longest; a
/// reader does not displace an administrator. An open page reconnects. Owned by one thread.
class Watchers {
 public:
  /// `connections`: limit on open connections.
  explicit Watchers(uint32_t connections) : most_(std::max<size_t>(1, connections - connections / 4)) {}

  struct Place {
    std::shared_ptr<const void> held;       ///< reserves the place while it lives
    kj::Promise<void> displaced = nullptr;  ///< fails when another caller takes the place
  };
  /// Nothing if administrators hold all places and the caller is not one.
  std::optional<Place> enter(bool admin) {
    if (watchers_.size() >= most_) {
      auto oldest = std::find_if(watchers_.begin(), watchers_.end(), [](auto& each) { return !each.admin; });
      if (oldest == watchers_.end() && admin) oldest = watchers_.begin();
      if (oldest == watchers_.end()) return {};
      auto displace = kj::mv(oldest->displace);
      watchers_.erase(oldest);
      displace->reject(KJ_EXCEPTION(DISCONNECTED, "displaced by another caller that follows the events"));
    }
    auto pair = kj::newPromiseAndFulfiller<void>();
    const uint64_t number = ++last_;
    watchers_.push_back({number, admin, kj::mv(pair.fulfiller)});
    return Place{{this,
                  [this, number](const void*) {
                    watchers_.remove_if([&](const Watcher& each) { return each.number == number; });
                  }},
                 kj::mv(pair.promise)};
  }
  size_t most() const { return most_; }

 private:
  struct Watcher {
    uint64_t number = 0;
    bool admin = false;
    kj::Own<kj::PromiseFulfiller<void>> displace;
  };

  const size_t most_;
  uint64_t last_ = 0;
  std::list<Watcher> watchers_;  // oldest first
};

}  // namespace psd
