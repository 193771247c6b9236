#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/status/status.h"
#include "common/types/all_reduce.h"

namespace psd {

/// A group of trainers as one of them works in it. All members make the same calls in the same order, each
/// blocks until the others have made it. After an Error (somebody is gone, or silent for the timeout) the
/// group is of no use any more, and the arrays of that call may hold anything. Owned by one thread.
class Collective {
 public:
  virtual ~Collective() = default;

  /// Each array becomes the sum of what the members have in it, the same bits for all. When it returns,
  /// nothing touches the arrays any more.
  virtual Status sum(const std::vector<std::span<float>>& arrays) = 0;
  /// Everyone gets what the first member has.
  virtual Status handOn(std::span<uint64_t> words) = 0;
  virtual Status handOn(std::span<float> values) = 0;
};

/// Makes the groups of one trainer. Owned by one thread.
class CollectiveMaker {
 public:
  virtual ~CollectiveMaker() = default;

  /// Where the other trainers reach this one: host and port.
  virtual Result<AveragingMember> where() = 0;
  /// The group, once all of its members make it, within `timeout`, which each of its calls has too.
  virtual Result<std::unique_ptr<Collective>> make(const FormedGroup& group,
                                                   std::chrono::milliseconds timeout) = 0;
};

}  // namespace psd
