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

/// A join of a session, as its connections know it. A value type.
struct Attachment {
  std::shared_ptr<const SessionStanding> standing;  ///< null: of a session that always stands
  uint32_t number = 0;

  /// Whether this join's connections are still the session's. Once they are not, they never will be again.
  bool stands() const { return !standing || standing->attachment == number; }
};

}  // namespace psd
