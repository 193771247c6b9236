#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "common/text/quantity.h"
#include "trainer/client/api/version_reader.h"
#include "trainer/client/reading_link.h"

// What all readers of versions have in common.

namespace psd {

/// Lets one thread at a time wait for a version with a reader. Thread-safe.
class VersionWait {
 public:
  /// Returns what `wait()` does. invalidArgument: another thread waits.
  template <class Wait>
  Result<PublishedVersion> alone(const Wait& wait) {
    if (isWaiting_.exchange(true)) {
      return Error{ErrorCode::invalidArgument,
                   "another thread waits for a version with this reader: make one for each thread"};
    }
    auto version = wait();
    isWaiting_ = false;
    return version;
  }

 private:
  std::atomic<bool> isWaiting_{false};
};

/// Whether a wait until `until` ended with `error` because its time was over, which also ends the attempts to
/// reconnect. `isGone`: whether a daemon is gone for good, which the error then says.
inline bool isOver(const Error& error, const ReadingLink::Until& until, bool isGone) {
  if (!until) return false;  // whatever a daemon answers
  return error.code == ErrorCode::deadlineExceeded || (ReadingLink::isFault(error) && !isGone);
}

/// deadlineExceeded: version `number` (0: any) did not come in time. `why`: the error at the end of the wait.
/// `by`: by whom, as " by all daemons".
inline Error notPublished(const std::string& server, uint64_t number, std::chrono::milliseconds timeout,
                          const Error& why, std::string_view by = "") {
  const std::string hint =
      why.code == ErrorCode::deadlineExceeded ? "see the key publish of its configuration" : why.message;
  return {ErrorCode::deadlineExceeded,
          fmt::format("{}: {} published{} within {}: {}", server,
                      number == 0 ? "no version was" : fmt::format("version {} was not", number), by,
                      durationText(timeout), hint)};
}

/// Error of a pin() during which another thread has called handOverPins().
inline Error movedWhilePinned(const std::string& server) {
  return {ErrorCode::unavailable, server + ": the model has moved"};
}

/// Whether VersionReader::pin() accepts this time.
inline Status checkPinTime(std::chrono::seconds time) {
  constexpr std::chrono::seconds kMost = VersionReader::kLeaseMax;
  if (time.count() >= 1 && time <= kMost) return {};
  return {ErrorCode::invalidArgument, fmt::format("a version is pinned by a lease of 1 to {} seconds, not {}",
                                                  kMost.count(), time.count())};
}

}  // namespace psd
