#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "common/status/status.h"

namespace psd {

/// A session's fencing token: its newest join, and whether and why it has ended. Written by the control loop,
/// read by the other loops; thread-safe.
class SessionFence {
 public:
  static constexpr uint32_t kEnded = 0;
  /// Number of the newest join. Calls over connections of an earlier join are rejected.
  std::atomic<uint32_t> attachment{1};

  /// Ends the session, once; `why` completes "the daemon counts this trainer as gone: ".
  void end(std::string why) {
    why_ = std::move(why);
    attachment = kEnded;
  }
  /// An Error if the session is no longer reachable over the connections of join `number`.
  Status check(uint32_t number) const {
    const uint32_t current = attachment;
    if (current == number) return {};
    if (current == kEnded)
      return {ErrorCode::sessionEnded, "the daemon counts this trainer as gone: " + why_};
    return {ErrorCode::sessionEnded, "this trainer has joined again over another connection"};
  }

 private:
  std::string why_;  // written before `attachment` becomes kEnded
};

/// The join that a connection belongs to. A value type.
struct Attachment {
  std::shared_ptr<const SessionFence> fence;  ///< null: the session never ends
  uint32_t number = 0;

  /// Whether this is still the session's newest join. Once false, it stays false.
  bool isCurrent() const { return !fence || fence->attachment == number; }
  /// See SessionFence::check().
  Status check() const { return fence ? fence->check(number) : Status(); }
};

}  // namespace psd
