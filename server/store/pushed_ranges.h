#pragma once

#include <cstdint>
#include <vector>

#include "server/store/applied_push.h"
#include "server/store/update_log.h"

namespace psd {

/// Some elements of a shard, counted from its begin, and which pushes are in all of them. A value type.
struct PushedRange {
  uint64_t begin = 0, count = 0;
  std::vector<AppliedPush> pushes;  ///< of each rank the newest
  bool operator==(const PushedRange&) const = default;
};

/// Which pushes are in a shard, under a policy that applies under the shard's lock. As a rule all elements of
/// a shard hold the same pushes. A shard that was put together of others, at the start of a daemon, consists
/// of several ranges, of which some may hold pushes that others lack, until these come again. Guarded by the
/// shard's lock. A value type.
class PushedRanges {
 public:
  PushedRanges() = default;
  /// `count` elements that all hold `pushes`.
  PushedRanges(uint64_t count, std::vector<AppliedPush> pushes);
  /// `ranges`, end to end, are the whole shard. Neighbours with equal pushes become one range.
  explicit PushedRanges(std::vector<PushedRange> ranges);

  const std::vector<PushedRange>& ranges() const { return ranges_; }
  bool divided() const { return ranges_.size() > 1; }

  /// The elements that a push is yet to be applied to: all of them unless divided().
  std::vector<PushedRange> lacking(const UpdateSource& push) const;
  /// Notes that the push is now in the elements that lacked it.
  void note(const AppliedPush& push);

  bool operator==(const PushedRanges&) const = default;

 private:
  void join();

  std::vector<PushedRange> ranges_;  // at least one
};

/// Adds to `into` which pushes are in the elements [begin, begin + count) of a new shard, as far as a shard
/// has them that begins at `fromBegin`.
void takeOverPushes(const PushedRanges& from, uint64_t fromBegin, uint64_t begin, uint64_t count,
                    std::vector<PushedRange>& into);

/// For each range the newest push of one process of a trainer, `incarnation` of `rank`. Step 0: the
/// range holds none.
std::vector<AppliedPush> pushesOf(const PushedRanges& pushed, Rank rank, uint64_t incarnation);

}  // namespace psd
