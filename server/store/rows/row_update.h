#pragma once

// Plain C++ and no third-party header: .cu files include this.

#include <cstdint>
#include <limits>
#include <span>

#include "server/optimizer/option.h"

namespace psd {

/// What becomes of the gradient of a row on its way to the optimizer, in the order of these fields. A value
/// type.
struct RowChange {
  float scale = 1;                                       ///< g ← scale · g
  float limit = std::numeric_limits<float>::infinity();  ///< each value cut to −limit … limit
  float rowNorm = std::numeric_limits<float>::infinity();  ///< g ← g · rowNorm / ‖g‖ where ‖g‖ is more

  bool none() const {
    constexpr float kNoLimit = std::numeric_limits<float>::infinity();
    return scale == 1 && limit == kNoLimit && rowNorm == kNoLimit;
  }
};

/// One optimizer step for each of some rows. A view of memory that the caller keeps; a value type.
struct RowUpdate {
  UpdateScalars scalars;
  /// Per row, in place of scalars.number; empty: scalars.number for all.
  std::span<const uint64_t> numbers;
  RowChange change;
};

}  // namespace psd
