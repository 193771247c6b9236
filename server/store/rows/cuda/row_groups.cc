#include "server/store/rows/cuda/row_groups.h"

#include <algorithm>
#include <bit>

#include "common/types/split_mix.h"
#include "server/store/rows/row_layout.h"

namespace psd {

uint32_t RowGroups::groupOf(uint32_t row) {
  size_t at = splitMix(row) & (places_.size() - 1);
  while (places_[at].stamp == stamp_ && places_[at].row != row) at = (at + 1) & (places_.size() - 1);
  Place& place = places_[at];
  if (place.stamp != stamp_) {
    place = {stamp_, row, static_cast<uint32_t>(rows_.size())};
    rows_.push_back(row);
    ends_.push_back(0);
  }
  return place.group;
}

void RowGroups::make(std::span<const uint32_t> rows) {
  rows_.clear();
  ends_.clear();
  order_.clear();
  groups_.clear();
  if (++stamp_ == 0 || places_.size() < 2 * rows.size()) {
    places_.assign(std::max(places_.size(), std::bit_ceil(2 * rows.size() + 1)), Place());
    stamp_ = 1;
  }
  for (uint32_t i = 0; i < rows.size(); ++i) {
    if (rows[i] == kNoRow) continue;
    const uint32_t group = groupOf(rows[i]);
    ++ends_[group];
    groups_.push_back(group);
    order_.push_back(i);
  }
  const bool repeats = rows_.size() < order_.size();
  std::vector<uint32_t> next(repeats ? rows_.size() : 0);
  uint32_t sum = 0;
  for (size_t group = 0; group < ends_.size(); ++group) {
    if (repeats) next[group] = sum;
    sum = ends_[group] += sum;
  }
  if (!repeats) return;
  const std::vector<uint32_t> given = order_;
  for (size_t k = 0; k < given.size(); ++k) order_[next[groups_[k]]++] = given[k];
}

}  // namespace psd
