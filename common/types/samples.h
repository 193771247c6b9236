#pragma once

#include <cstdint>

#include "common/types/ids.h"

namespace psd {

/// A piece of one pass over the data: places [begin, begin + count) of that epoch's order.
struct SampleRange {
  uint64_t epoch = 0;  ///< from 0
  uint64_t begin = 0;
  uint64_t count = 0;
  bool operator==(const SampleRange&) const = default;
};

/// Samples that a trainer has for the gradient of a step that was not answered.
struct HeldSamples {
  Step step;
  SampleRange range;
  bool operator==(const HeldSamples&) const = default;
};

}  // namespace psd
