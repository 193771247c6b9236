#pragma once

#include <cstdint>
#include <vector>

#include "common/types/ids.h"

namespace psd {

/// The newest applied push of one rank in one shard: its result, and which earlier pushes the shard also
/// holds. Enough to recognize a repeated push. A value type.
struct AppliedPush {
  static constexpr uint64_t kRememberedSteps = 64;      ///< remembered steps, the newest excluded
  static constexpr size_t kEarlierIncarnationsMax = 8;  ///< remembered incarnations

  Rank rank;
  uint64_t incarnation = 0;  ///< of the trainer process that pushed
  Step step;
  Version version;                     ///< created by the push
  uint64_t staleness = 0;              ///< of the push
  uint64_t before = 0;                 ///< bit i: the push of step − 1 − i is in the shard
  std::vector<uint64_t> earlier = {};  ///< previous incarnations of the rank that pushed, newest last
  bool operator==(const AppliedPush&) const = default;
};

/// Records a push in a shard's list, which has one entry per rank, and computes `push.before` and
/// `push.earlier`. If the step is not greater than the rank's recorded step, the push is from another process
/// of the trainer or is a repeat.
void recordPush(std::vector<AppliedPush>& pushes, AppliedPush push);

/// Adds the incarnations of `older`, an earlier push of the same rank, to `newer.earlier`.
void recordEarlierIncarnations(AppliedPush& newer, const AppliedPush& older);

/// Whether the shard holds the push of `step` by the trainer of `push`. A step older than the remembered
/// window counts as held; only the caller may know that it was dropped.
bool holds(const AppliedPush& push, Step step);

}  // namespace psd
