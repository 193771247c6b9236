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

/// Which pushes are in a shard. That is the same for all of its elements, but where the shard was put
/// together of others, at the start of a daemon, of which some had pushes that others had not: until these
/// come again it consists of several ranges. Pushes under a policy that applies under the shard's lock, with
/// which it is guarded. A value type.
class PushedRanges {
 public:
  PushedRanges() = default;
  /// `count` elements, all of which have the same pushes.
  PushedRanges(uint64_t count, std::vector<AppliedPush> pushes);
  /// `ranges`, end to end, are the whole shard. Neighbours that have the same pushes become one.
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

/// Of each range the newest push of one life of a trainer, the process `incarnation` of `rank`; of step 0
/// where there is none.
std::vector<AppliedPush> pushesOf(const PushedRanges& pushed, Rank rank, uint64_t incarnation);

}  // namespace psd
