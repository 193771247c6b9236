#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace psd {

/// Whether a session still stands. Written by the control loop, read by the loops; thread-safe.
struct SessionStanding {
  static constexpr uint32_t kEnded = 0;
  /// The number of the join whose connections are the session's. Calls over connections of an earlier join
  /// are refused.
  std::atomic<uint32_t> attachment{1};
};

/// One of a session's connections, or several that the trainer had at a time. A value type.
struct Attachment {
  std::shared_ptr<const SessionStanding> standing;  ///< null: of a session that always stands
  uint32_t number = 0;

  /// Whether it is still the session's. Once it is not it never will be again.
  bool stands() const { return !standing || standing->attachment == number; }
};

}  // namespace psd
