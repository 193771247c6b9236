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

/// A series of at most kPointsMax points: when it is full, every second point is dropped and from then on
/// only half as many are stored. Spans all points added. Owned by one thread.
class ThinnedSeries {
 public:
  static constexpr size_t kPointsMax = 240;

  void add(const ReportedPoint& point);
  const std::vector<ReportedPoint>& points() const { return points_; }

 private:
  std::vector<ReportedPoint> points_;
  uint64_t seen_ = 0, every_ = 1;
};

/// Values that trainers report of their training: per rank the newest values and their history. Holds at most
/// kRanksMax ranks, about 6 MB in total; a further rank replaces the one with the oldest report. Pure. Owned
/// by one thread.
class ReportBook {
 public:
  static constexpr size_t kRanksMax = 64;

  struct Entry {
    uint64_t step = 0;               ///< of the newest report
    std::vector<NamedValue> newest;  ///< for each name, from the newest report that had it
    std::map<std::string, ThinnedSeries> series;
    uint64_t turn = 0;  ///< order of the newest report among those of all ranks
  };

  /// `values`: from validateReport(). Further names of a rank with kReportedValuesMax names are ignored.
  void add(Rank rank, uint64_t step, std::span<const NamedValue> values, double time);

  const std::map<Rank, Entry>& ranks() const { return ranks_; }
  /// Null: no report of the rank.
  const Entry* find(Rank rank) const;

 private:
  std::map<Rank, Entry> ranks_;
  uint64_t turns_ = 0;
};

}  // namespace psd
