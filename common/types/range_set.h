#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace psd {

/// Disjoint ranges of one index space that record which slices have arrived. Adjacent ranges merge, so slices
/// in order cost one entry. Owned by one thread.
class RangeSet {
 public:
  /// Adds [begin, begin + count). Returns false without a change if the set holds some of these elements.
  bool add(uint64_t begin, uint64_t count);
  /// Removes [begin, begin + count). Returns false without a change unless all of it is covered.
  bool remove(uint64_t begin, uint64_t count);
  /// Number of covered indexes.
  uint64_t covered() const { return covered_; }
  bool overlaps(uint64_t begin, uint64_t count) const;
  /// Whether all of [begin, begin + count) is covered.
  bool contains(uint64_t begin, uint64_t count) const;
  /// Number of separate ranges, to which the memory of this set is proportional.
  size_t pieces() const { return ends_.size(); }
  /// Begin and end of each separate range, ascending.
  const std::map<uint64_t, uint64_t>& ends() const { return ends_; }
  void clear();
  bool operator==(const RangeSet&) const = default;

 private:
  std::map<uint64_t, uint64_t> ends_;  // begin -> end
  uint64_t covered_ = 0;
};

}  // namespace psd
