#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace psd {

/// Which join of a session is its newest, and whether the session has ended: a fencing token. Written by the
/// control loop, read by the loops; thread-safe.
struct SessionEpoch {
  static constexpr uint32_t kEnded = 0;
  /// The number of the join whose connections are the session's. Calls over connections of an earlier join
  /// are refused.
  std::atomic<uint32_t> attachment{1};
};

/// A join of a session, as its connections know it. A value type.
struct Attachment {
  std::shared_ptr<const SessionEpoch> epoch;  ///< null: of a session that never ends
  uint32_t number = 0;

  /// Whether this join's connections are still the session's. Once they are not, they never will be again.
  bool isCurrent() const { return !epoch || epoch->attachment == number; }
};

}  // namespace psd
