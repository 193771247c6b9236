#include "common/types/range_set.h"

#include <iterator>

namespace psd {

bool RangeSet::overlaps(uint64_t begin, uint64_t count) const {
  if (count == 0) return false;
  auto after = ends_.lower_bound(begin);
  if (after != ends_.end() && after->first < begin + count) return true;
  return after != ends_.begin() && std::prev(after)->second > begin;
}

bool RangeSet::contains(uint64_t begin, uint64_t count) const {
  if (count == 0) return true;
  // Adjacent ranges merge, so one range holds all of the elements or none does.
  auto after = ends_.upper_bound(begin);
  return after != ends_.begin() && std::prev(after)->second >= begin + count;
}

bool RangeSet::add(uint64_t begin, uint64_t count) {
  if (overlaps(begin, count)) return false;
  if (count == 0) return true;
  covered_ += count;
  uint64_t end = begin + count;
  auto after = ends_.lower_bound(begin);
  if (after != ends_.end() && after->first == end) {
    end = after->second;
    after = ends_.erase(after);
  }
  if (after != ends_.begin() && std::prev(after)->second == begin) {
    std::prev(after)->second = end;
  } else {
    ends_.emplace_hint(after, begin, end);
  }
  return true;
}

bool RangeSet::remove(uint64_t begin, uint64_t count) {
  if (!contains(begin, count)) return false;
  if (count == 0) return true;
  covered_ -= count;
  const auto piece = std::prev(ends_.upper_bound(begin));
  const uint64_t pieceEnd = piece->second;
  if (pieceEnd > begin + count) ends_.emplace_hint(std::next(piece), begin + count, pieceEnd);
  if (piece->first == begin) {
    ends_.erase(piece);
  } else {
    piece->second = begin;
  }
  return true;
}

void RangeSet::clear() {
  ends_.clear();
  covered_ = 0;
}

}  // namespace psd
