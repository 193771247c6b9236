#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/status/status.h"
#include "common/types/all_reduce.h"

namespace psd {

/// An averaging group as seen by one member. All members make the same calls in the same order; each call
/// blocks until the others have made it. After an Error (a member is gone or timed out) the group is unusable
/// and the arrays of that call are unspecified. Owned by one thread.
class Collective {
 public:
  virtual ~Collective() = default;

  /// Replaces each array by its sum over all members, with identical bits on each. The arrays are not
  /// accessed after it returns.
  virtual Status sum(const std::vector<std::span<float>>& arrays) = 0;
  /// Broadcasts the first member's values.
  virtual Status broadcastFromFirst(std::span<uint64_t> words) = 0;
  virtual Status broadcastFromFirst(std::span<float> values) = 0;
};

/// Makes the groups of one trainer. Owned by one thread.
class CollectiveMaker {
 public:
  virtual ~CollectiveMaker() = default;

  /// Host and port at which the other trainers reach this one.
  virtual Result<AveragingMember> where() = 0;
  /// Blocks until all members have made the group, at most `timeout`, which also bounds each call on it.
  virtual Result<std::unique_ptr<Collective>> make(const FormedGroup& group,
                                                   std::chrono::milliseconds timeout) = 0;
};

}  // namespace psd
