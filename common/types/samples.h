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

/// What a trainer wants of the samples that the daemon deals. `samples` of an epoch and `epochs` are the same
/// for all trainers.
struct SamplesRequest {
  Step step;           ///< whose gradient they are for
  uint32_t count = 0;  ///< at most
  uint64_t samples = 0, epochs = 0;
  uint64_t firstEpoch = 0;  ///< where a daemon without a plan begins: the epoch of the last samples
  /// Whether to wait where others have what is left. Only once all pushes are answered: until there is
  /// something, nobody waits for this trainer.
  bool wait = false;
  /// Not 0: the daemon chooses how many, so that all trainers compute as long for a step, and together have
  /// about as many samples as if each had `nominal`, the same for all.
  uint32_t nominal = 0;
  double sampleSeconds = 0;  ///< with `nominal`: computing for one sample; 0: not known yet
};

}  // namespace psd
