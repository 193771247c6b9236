#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "common/status/status.h"

namespace psd {

/// Which join of a session is its newest, and whether and why the session has ended: a fencing token. Written
/// by the control loop, read by the loops; thread-safe.
class SessionEpoch {
 public:
  static constexpr uint32_t kEnded = 0;
  /// The number of the join whose connections are the session's. Calls over connections of an earlier join
  /// are refused.
  std::atomic<uint32_t> attachment{1};

  /// Ends the session, once; `why` completes "the daemon counts this trainer as gone: ".
  void end(std::string why) {
    why_ = std::move(why);
    attachment = kEnded;
  }
  /// Why there is no session over the connections of join `number` any more; nothing while there is one.
  Status check(uint32_t number) const {
    const uint32_t current = attachment;
    if (current == number) return {};
    if (current == kEnded)
      return {ErrorCode::sessionEnded, "the daemon counts this trainer as gone: " + why_};
    return {ErrorCode::sessionEnded, "this trainer has joined again over another connection"};
  }

 private:
  std::string why_;  // written before `attachment` says that the session has ended
};

/// A join of a session, as its connections know it. A value type.
struct Attachment {
  std::shared_ptr<const SessionEpoch> epoch;  ///< null: of a session that never ends
  uint32_t number = 0;

  /// Whether this join's connections are still the session's. Once they are not, they never will be again.
  bool isCurrent() const { return !epoch || epoch->attachment == number; }
  /// As SessionEpoch::check().
  Status check() const { return epoch ? epoch->check(number) : Status(); }
};

}  // namespace psd
