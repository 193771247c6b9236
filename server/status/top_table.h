#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/status/daemon_status.h"

namespace psd {

/// What `psd top` shows of a daemon. A value type.
struct TopView {
  std::string_view sort = "rank";  ///< one of topSortKeys(); all but "rank" largest first
  /// The most lines; 0: no limit. Trainers are left out, down to one, and a line tells how many.
  size_t rows = 0;
  /// The most characters in a line: columns are left out, and lines that are still longer are cut.
  size_t columns = SIZE_MAX;
};

std::vector<std::string_view> topSortKeys();

/// A human-readable view of a daemon's activity between two readings: rates, trainers, waits. `before` may
/// come from another daemon or be empty (uptimeSeconds 0); rates are then since the start.
std::string topTable(const DaemonStatus& before, const DaemonStatus& now, const TopView& view = {});

}  // namespace psd
