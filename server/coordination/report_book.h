#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "common/types/ids.h"
#include "common/types/named_value.h"

namespace psd {

/// One value that a trainer reported. A value type.
struct ReportedPoint {
  double time = 0;  ///< Unix time, in seconds
  uint64_t step = 0;
  double value = 0;
};

/// A series that never has more than kPointsMax points: once it is full every second one goes, and from then
/// on half as many come in. It spans all that came. Owned by one thread.
class ThinnedSeries {
 public:
  static constexpr size_t kPointsMax = 240;

  void add(const ReportedPoint& point);
  const std::vector<ReportedPoint>& points() const { return points_; }

 private:
  std::vector<ReportedPoint> points_;
  uint64_t seen_ = 0, every_ = 1;
};

/// What trainers report of their training: of each rank the newest values and how they came about. Of
/// kRanksMax ranks, at most some 6 MB in all; another one takes the place of who has been silent longest.
/// Pure. Owned by one thread.
class ReportBook {
 public:
  static constexpr size_t kRanksMax = 64;

  struct Entry {
    uint64_t step = 0;               ///< of the newest report
    std::vector<NamedValue> newest;  ///< of the newest report that had each of the names
    std::map<std::string, ThinnedSeries> series;
    uint64_t turn = 0;  ///< of the newest report among all
  };

  /// `values`: of checkReported(). Of a rank that has kReportedNamesMax names others are passed over.
  void add(Rank rank, uint64_t step, std::span<const NamedValue> values, double time);

  const std::map<Rank, Entry>& ranks() const { return ranks_; }
  /// Null: nothing is known of the rank.
  const Entry* find(Rank rank) const;

 private:
  std::map<Rank, Entry> ranks_;
  uint64_t turns_ = 0;
};

}  // namespace psd
