#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/types/row_ids.h"
#include "server/store/gradient.h"

namespace psd {

/// Rows and their gradients, row after row. A view; does not own the memory. A value type.
struct RowGradient {
  RowIds rows;
  Gradient values;
};

/// Rows and their gradients in host memory, valid until `owner` is released, or during the call if it is
/// null. Immutable.
struct StagedRows {
  RowIds rows;
  std::span<const float> gradients;  ///< row after row
  std::shared_ptr<const void> owner;

  uint64_t bytes() const { return gradients.size_bytes() + rows.ids.size_bytes() + rows.runs.size_bytes(); }
};

/// Storage to assemble StagedRows in.
struct CollectedRows {
  std::vector<RowRun> runs;
  std::vector<uint64_t> ids;
  std::vector<float> gradients;

  /// The rows as StagedRows that share ownership of `all`.
  static StagedRows stage(std::shared_ptr<const CollectedRows> all) {
    StagedRows rows{{all->runs, all->ids}, all->gradients, nullptr};
    rows.owner = std::move(all);
    return rows;
  }
};

}  // namespace psd
