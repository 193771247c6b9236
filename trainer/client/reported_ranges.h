#pragma once

#include <cstdint>
#include <iterator>
#include <map>

namespace psd {

/// Ranges of a gradient's elements that were reported as final, each element once. Owned by one thread.
class ReportedRanges {
 public:
  /// Returns false and records nothing if an element of [begin, begin + count) was reported before.
  bool add(uint64_t begin, uint64_t count) {
    if (count == 0) return true;
    uint64_t end = begin + count;
    auto next = ends_.lower_bound(begin);
    if (next != ends_.end() && next->first < end) return false;
    if (next != ends_.begin()) {
      const auto before = std::prev(next);
      if (before->second > begin) return false;
      if (before->second == begin) {
        begin = before->first;
        ends_.erase(before);
      }
    }
    if (next != ends_.end() && next->first == end) {
      end = next->second;
      ends_.erase(next);
    }
    ends_[begin] = end;
    return true;
  }
  /// End of each range by its begin; no two ranges touch.
  const std::map<uint64_t, uint64_t>& ends() const { return ends_; }

 private:
  std::map<uint64_t, uint64_t> ends_;
};

}  // namespace psd
