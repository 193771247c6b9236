#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/types/row_ids.h"
#include "server/store/gradient.h"

namespace psd {

/// Rows with a gradient for each: its values, row after row. A view of memory that somebody else keeps; a
/// value type.
struct RowGradient {
  RowIds rows;
  Gradient values;
};

/// Rows with a gradient for each of them, all in host memory until `owner` is released; where that is null,
/// as long as the caller's call. Immutable.
struct StagedRows {
  RowIds rows;
  std::span<const float> gradients;  ///< row after row
  std::shared_ptr<const void> owner;

  uint64_t bytes() const { return gradients.size_bytes() + rows.ids.size_bytes() + rows.runs.size_bytes(); }
};

/// Memory for StagedRows that are put together.
struct CollectedRows {
  std::vector<RowRun> runs;
  std::vector<uint64_t> ids;
  std::vector<float> gradients;

  /// The rows, which keep `all` for as long as they are kept themselves.
  static StagedRows stage(std::shared_ptr<const CollectedRows> all) {
    StagedRows rows{{all->runs, all->ids}, all->gradients, nullptr};
    rows.owner = std::move(all);
    return rows;
  }
};

}  // namespace psd
