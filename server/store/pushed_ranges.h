#pragma once

#include <cstdint>
#include <vector>

#include "server/store/applied_push.h"
#include "server/store/update_log.h"

namespace psd {

/// A range of elements, relative to the start of the shard, and the pushes applied to all of them. A value
/// type.
struct PushedRange {
  uint64_t begin = 0, count = 0;
  std::vector<AppliedPush> pushes;  ///< the newest of each rank
  bool operator==(const PushedRange&) const = default;
};

/// The pushes applied to a shard, under a policy that applies under the shard's lock. Normally all elements
/// of a shard contain the same pushes. A shard that was assembled from others at the daemon's start has
/// several ranges, some of which may lack pushes until these are sent again. Guarded by the shard's lock. A
/// value type.
class PushedRanges {
 public:
  PushedRanges() = default;
  /// A shard of `count` elements that all contain `pushes`.
  PushedRanges(uint64_t count, std::vector<AppliedPush> pushes);
  /// `ranges` are consecutive and cover the whole shard. Adjacent ranges with equal pushes are merged.
  explicit PushedRanges(std::vector<PushedRange> ranges);

  const std::vector<PushedRange>& ranges() const { return ranges_; }
  bool divided() const { return ranges_.size() > 1; }

  /// The elements that do not yet contain the push: all of them unless divided().
  std::vector<PushedRange> lacking(const UpdateSource& push) const;
  /// Records that the push was applied to the elements that lacked it.
  void note(const AppliedPush& push);

  bool operator==(const PushedRanges&) const = default;

 private:
  void join();

  std::vector<PushedRange> ranges_;  // at least one
};

/// Appends to `into` the pushes of elements [begin, begin + count) of a new shard, as far as these overlap an
/// old shard `from` that starts at `fromBegin`.
void copyPushes(const PushedRanges& from, uint64_t fromBegin, uint64_t begin, uint64_t count,
                std::vector<PushedRange>& into);

/// The newest push of one trainer process, `incarnation` of `rank`, for each range. Step 0: the range
/// contains none.
std::vector<AppliedPush> pushesOf(const PushedRanges& pushed, Rank rank, uint64_t incarnation);

}  // namespace psd
