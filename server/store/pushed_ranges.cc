#include "server/store/pushed_ranges.h"

#include <algorithm>
#include <utility>

namespace psd {
namespace {

const AppliedPush* newestOf(const PushedRange& range, Rank rank) {
  const auto found = std::find_if(range.pushes.begin(), range.pushes.end(),
                                  [&](const AppliedPush& push) { return push.rank == rank; });
  return found == range.pushes.end() ? nullptr : &*found;
}

/// Whether the range has passed the push: it contains the push or has dropped it. Without an incarnation,
/// processes cannot be distinguished.
bool hasPassed(const PushedRange& range, Rank rank, uint64_t incarnation, Step step) {
  const AppliedPush* newest = incarnation == 0 ? nullptr : newestOf(range, rank);
  if (!newest) return false;
  if (newest->incarnation == incarnation) return newest->step >= step;
  return std::find(newest->earlier.begin(), newest->earlier.end(), incarnation) != newest->earlier.end();
}

/// Whether both ranges contain the same pushes; their versions may differ.
bool samePushes(const PushedRange& a, const PushedRange& b) {
  if (a.pushes.size() != b.pushes.size()) return false;
  return std::all_of(a.pushes.begin(), a.pushes.end(), [&](const AppliedPush& push) {
    const AppliedPush* other = newestOf(b, push.rank);
    return other && other->incarnation == push.incarnation && other->step == push.step &&
           other->before == push.before && other->earlier == push.earlier;
  });
}

}  // namespace

PushedRanges::PushedRanges(uint64_t count, std::vector<AppliedPush> pushes) {
  ranges_.push_back({0, count, std::move(pushes)});
}

PushedRanges::PushedRanges(std::vector<PushedRange> ranges) : ranges_(std::move(ranges)) { join(); }

void PushedRanges::join() {
  std::vector<PushedRange> joined;
  for (PushedRange& range : ranges_) {
    if (joined.empty() || !samePushes(joined.back(), range)) {
      joined.push_back(std::move(range));
      continue;
    }
    PushedRange& before = joined.back();
    before.count += range.count;
    for (AppliedPush& push : before.pushes) {
      const AppliedPush& other = *newestOf(range, push.rank);
      if (push.version < other.version) push = other;
    }
  }
  ranges_ = std::move(joined);
}

std::vector<PushedRange> PushedRanges::lacking(const UpdateSource& push) const {
  std::vector<PushedRange> found;
  for (const PushedRange& range : ranges_) {
    if (divided() && hasPassed(range, push.rank, push.incarnation, push.step)) continue;
    if (!found.empty() && found.back().begin + found.back().count == range.begin) {
      found.back().count += range.count;
    } else {
      found.push_back({range.begin, range.count, {}});
    }
  }
  return found;
}

void PushedRanges::note(const AppliedPush& push) {
  for (PushedRange& range : ranges_) {
    if (!divided() || !hasPassed(range, push.rank, push.incarnation, push.step)) {
      recordPush(range.pushes, push);
    }
  }
  if (divided()) join();
}

std::vector<AppliedPush> pushesOf(const PushedRanges& pushed, Rank rank, uint64_t incarnation) {
  std::vector<AppliedPush> found;
  for (const PushedRange& range : pushed.ranges()) {
    const AppliedPush* newest = newestOf(range, rank);
    found.push_back(newest && newest->incarnation == incarnation ? *newest : AppliedPush{.rank = rank});
  }
  return found;
}

void copyPushes(const PushedRanges& from, uint64_t fromBegin, uint64_t begin, uint64_t count,
                std::vector<PushedRange>& into) {
  for (const PushedRange& range : from.ranges()) {
    const uint64_t first = std::max(fromBegin + range.begin, begin);
    const uint64_t last = std::min(fromBegin + range.begin + range.count, begin + count);
    if (first < last) into.push_back({first - begin, last - first, range.pushes});
  }
}

}  // namespace psd
