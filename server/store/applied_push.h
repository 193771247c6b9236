#pragma once

#include <cstdint>
#include <vector>

#include "common/types/ids.h"

namespace psd {

/// The newest push of one trainer that became part of a shard, what it was answered, and which earlier pushes
/// are in the shard. That is enough to recognise a push that comes again. A value type.
struct AppliedPush {
  static constexpr uint64_t kBefore = 64;    ///< steps that are remembered besides the newest
  static constexpr size_t kEarlierMost = 8;  ///< processes that are remembered

  Rank rank;
  uint64_t incarnation = 0;  ///< of the trainer that pushed
  Step step;
  Version version;         ///< that the push made
  uint64_t staleness = 0;  ///< that the push had
  uint64_t before = 0;     ///< bit i: the push of step − 1 − i is in the shard
  std::vector<uint64_t> earlier =
      {};  ///< incarnations that had the rank before and pushed, the last one last
  bool operator==(const AppliedPush&) const = default;
};

/// Enters a push into the list of a shard's pushes, one per rank, and works out `push.before` and
/// `push.earlier`. A step that is not above the rank's step in the list is of another process of the trainer,
/// or not new.
void noteApplied(std::vector<AppliedPush>& pushes, AppliedPush push);

/// Notes in `newer` that the processes of `older`, a push of the rank of `newer`, had that rank before.
void noteEarlier(AppliedPush& newer, const AppliedPush& older);

/// Whether the shard holds the push of `step` by the trainer of `push`. Of a step that is too old to be
/// remembered only the caller may know that it was dropped.
bool holds(const AppliedPush& push, Step step);

}  // namespace psd
