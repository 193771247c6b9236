#pragma once

#include <cstdint>
#include <vector>

#include "common/types/ids.h"

namespace psd {

/// The newest push of one trainer that became part of a shard, what it was answered, and which of those
/// before it are in the shard: enough to recognise them when they come again. A value type.
struct AppliedPush {
  static constexpr uint64_t kBefore = 64;    ///< steps that are remembered besides the newest
  static constexpr size_t kEarlierMost = 8;  ///< lives that are remembered

  Rank rank;
  uint64_t incarnation = 0;  ///< which life of that rank
  Step step;
  Version version;         ///< that the push made
  uint64_t staleness = 0;  ///< that the push had
  uint64_t before = 0;     ///< bit i: the push of step − 1 − i is in the shard too
  std::vector<uint64_t> earlier =
      {};  ///< incarnations that had the rank before and pushed, the last one last
  bool operator==(const AppliedPush&) const = default;
};

/// Enters a push among those of a shard, one per rank. `push.before` and `earlier` are worked out. A step
/// that is not above the one that is there is of another life, or not new.
void noteApplied(std::vector<AppliedPush>& pushes, AppliedPush push);

/// `older` was the same rank's, perhaps of another life: notes in `newer` that its lives had the rank before.
void noteEarlier(AppliedPush& newer, const AppliedPush& older);

/// Whether the push of `step`, of the same life of the trainer, is in the shard. Of one that is too old to be
/// remembered only the caller may know that it was dropped.
bool holds(const AppliedPush& push, Step step);

}  // namespace psd
