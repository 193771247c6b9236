#pragma once

// Plain C++ and no third-party header: .cu files include this.

#include <cstdint>
#include <limits>
#include <span>

#include "server/optimizer/option.h"

namespace psd {

/// Transformations of a row's gradient before the optimizer step, applied in the order of the fields. A value
/// type.
struct RowChange {
  float scale = 1;                                       ///< g ← scale · g
  float limit = std::numeric_limits<float>::infinity();  ///< each value clamped to [−limit, limit]
  float rowNorm = std::numeric_limits<float>::infinity();  ///< g ← g · rowNorm / ‖g‖ if ‖g‖ > rowNorm

  bool none() const {
    constexpr float kNoLimit = std::numeric_limits<float>::infinity();
    return scale == 1 && limit == kNoLimit && rowNorm == kNoLimit;
  }
};

/// One optimizer step for each of a set of rows. A view; does not own the memory. A value type.
struct RowUpdate {
  UpdateScalars scalars;
  /// Update number per row, replacing scalars.number; empty: scalars.number for all rows.
  std::span<const uint64_t> numbers;
  RowChange change;
};

}  // namespace psd
