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

/// The callers that follow the events, each over a connection of its own. Such a connection lasts while the
/// peer's system buffers what is sent, even if no program reads it. So a part of the connections is closed to
/// them, and when their share is taken a new caller displaces the one that has followed longest; a reader
/// displaces no administrator. A page that is open connects again. Owned by one thread.
class Watchers {
 public:
  /// `connections`: that may be open at once.
  explicit Watchers(uint32_t connections) : most_(std::max<size_t>(1, connections - connections / 4)) {}

  struct Place {
    std::shared_ptr<const void> held;       ///< the place is taken as long as this lives
    kj::Promise<void> displaced = nullptr;  ///< fails when another one takes the place
  };
  /// Nothing if administrators have all places, and the caller is none.
  std::optional<Place> enter(bool admin) {
    if (watchers_.size() >= most_) {
      auto oldest = std::find_if(watchers_.begin(), watchers_.end(), [](auto& each) { return !each.admin; });
      if (oldest == watchers_.end() && admin) oldest = watchers_.begin();
      if (oldest == watchers_.end()) return {};
      auto displace = kj::mv(oldest->displace);
      watchers_.erase(oldest);
      displace->reject(KJ_EXCEPTION(DISCONNECTED, "another caller follows the events in its place"));
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
  std::list<Watcher> watchers_;  // the oldest first
};

}  // namespace psd
