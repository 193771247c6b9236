#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace psd {

/// Disjoint ranges of one index space, for noting which slices have arrived. Adjacent ranges merge, so
/// slices in order cost one entry. Owned by one thread.
class RangeSet {
 public:
  /// Adds [begin, begin + count). False, and nothing changes, when the set holds some of these elements.
  bool add(uint64_t begin, uint64_t count);
  /// Takes [begin, begin + count) out. False, and nothing changes, unless all of it is covered.
  bool remove(uint64_t begin, uint64_t count);
  /// How many indexes are covered.
  uint64_t covered() const { return covered_; }
  bool overlaps(uint64_t begin, uint64_t count) const;
  /// Whether all of [begin, begin + count) is covered.
  bool contains(uint64_t begin, uint64_t count) const;
  /// How many separate ranges there are: what this set costs in memory.
  size_t pieces() const { return ends_.size(); }
  /// Begin and end of each separate range, rising.
  const std::map<uint64_t, uint64_t>& ends() const { return ends_; }
  void clear();
  bool operator==(const RangeSet&) const = default;

 private:
  std::map<uint64_t, uint64_t> ends_;  // begin -> end
  uint64_t covered_ = 0;
};

}  // namespace psd
