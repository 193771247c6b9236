#include "server/coordination/report_book.h"

#include <algorithm>

namespace psd {

void ThinnedSeries::add(const ReportedPoint& point) {
  if (seen_++ % every_ != 0) return;
  if (points_.size() == kPointsMax) {
    for (size_t i = 0; i < kPointsMax / 2; i++) points_[i] = points_[2 * i];
    points_.resize(kPointsMax / 2);
    every_ *= 2;
  }
  points_.push_back(point);
}

void ReportBook::add(Rank rank, uint64_t step, std::span<const NamedValue> values, double time) {
  if (!ranks_.contains(rank) && ranks_.size() == kRanksMax) {
    ranks_.erase(std::min_element(ranks_.begin(), ranks_.end(), [](const auto& one, const auto& other) {
      return one.second.turn < other.second.turn;
    }));
  }
  Entry& entry = ranks_[rank];
  entry.step = step;
  entry.turn = ++turns_;
  for (const NamedValue& each : values) {
    if (entry.series.size() == kReportedValuesMax && !entry.series.contains(each.name)) continue;
    entry.series[each.name].add({time, step, each.value});
    const auto known = std::find_if(entry.newest.begin(), entry.newest.end(),
                                    [&](const NamedValue& one) { return one.name == each.name; });
    if (known != entry.newest.end()) {
      known->value = each.value;
    } else {
      entry.newest.push_back(each);
    }
  }
}

const ReportBook::Entry* ReportBook::find(Rank rank) const {
  const auto entry = ranks_.find(rank);
  return entry == ranks_.end() ? nullptr : &entry->second;
}

}  // namespace psd
