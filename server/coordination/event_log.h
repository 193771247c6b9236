#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include <kj/async.h>

#include "server/status/daemon_event.h"

namespace psd {

/// The daemon's newest kEventsMax events, one line each. Owned by the control loop's thread.
class EventLog {
 public:
  static constexpr size_t kEventsMax = 256, kTextBytesMax = 500;

  /// `by`: the caller who requested it; empty: none.
  void add(std::string_view kind, std::string_view text, std::string_view by = {});
  /// The stored events with a number above `number`, oldest first.
  DaemonEvents after(uint64_t number) const;
  /// Resolves with after(number) once that is not empty.
  kj::Promise<DaemonEvents> nextAfter(uint64_t number);
  uint64_t newest() const { return newest_; }

 private:
  std::deque<DaemonEvent> events_;
  uint64_t newest_ = 0;
  kj::PromiseFulfillerPair<void> pair_ = kj::newPromiseAndFulfiller<void>();
  kj::ForkedPromise<void> added_ = pair_.promise.fork();
};

}  // namespace psd
