#include "trainer/client/coverage.h"

#include <algorithm>

namespace psd {

Coverage::Coverage(const std::vector<Slice>& slices) {
  parts_.reserve(slices.size());
  for (const Slice& slice : slices) {
    parts_.push_back({slice.arena, slice.arena + slice.count, slice.count});
    missing_ += slice.count;
  }
}

std::vector<size_t> Coverage::add(uint64_t begin, uint64_t count) {
  std::vector<size_t> complete;
  if (count == 0) return complete;
  const uint64_t end = begin + count;
  auto part = std::partition_point(parts_.begin(), parts_.end(),
                                   [begin](const Part& each) { return each.end <= begin; });
  for (; part != parts_.end() && part->begin < end; ++part) {
    const uint64_t noted = std::min(end, part->end) - std::max(begin, part->begin);
    part->missing -= noted;
    missing_ -= noted;
    if (part->missing == 0) complete.push_back(static_cast<size_t>(part - parts_.begin()));
  }
  return complete;
}

}  // namespace psd
