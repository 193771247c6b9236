#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include <kj/async.h>

#include "server/status/daemon_event.h"

namespace psd {

/// The daemon's newest events, one line each: kEventsMax of them, and besides kCheckpointsMax finished
/// checkpoints, which are frequent and therefore displace no other event. Owned by the control loop's thread.
class EventLog {
 public:
  static constexpr size_t kEventsMax = 256, kCheckpointsMax = 64, kTextBytesMax = 500;
  static constexpr std::string_view kCheckpoint = "checkpoint";

  /// `by`: the caller who requested it; empty: none.
  void add(std::string_view kind, std::string_view text, std::string_view by = {});
  /// The stored events with a number above `number`, oldest first.
  DaemonEvents after(uint64_t number) const;
  /// Resolves with after(number) once that is not empty.
  kj::Promise<DaemonEvents> nextAfter(uint64_t number);
  uint64_t newest() const { return newest_; }

 private:
  std::deque<DaemonEvent> events_, checkpoints_;
  uint64_t newest_ = 0;
  kj::PromiseFulfillerPair<void> pair_ = kj::newPromiseAndFulfiller<void>();
  kj::ForkedPromise<void> added_ = pair_.promise.fork();
};

}  // namespace psd
