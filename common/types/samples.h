#pragma once

#include <cstdint>

#include "common/types/ids.h"

namespace psd {

/// A range of one epoch: places [begin, begin + count) of its order.
struct SampleRange {
  uint64_t epoch = 0;  ///< from 0
  uint64_t begin = 0;
  uint64_t count = 0;
  bool operator==(const SampleRange&) const = default;
};

/// Samples that a trainer holds for the gradient of a step that is not answered yet.
struct HeldSamples {
  Step step;
  SampleRange range;
  bool operator==(const HeldSamples&) const = default;
};

/// A trainer's request for samples. `samples` per epoch and `epochs` are equal for all trainers.
struct SamplesRequest {
  Step step;           ///< whose gradient the samples are for
  uint32_t count = 0;  ///< at most
  uint64_t samples = 0, epochs = 0;
  uint64_t firstEpoch = 0;  ///< where a daemon without assignment state starts: the epoch of the last samples
  /// Whether to wait while other trainers hold all that is left. Only once all pushes are answered: meanwhile
  /// no trainer waits for this one.
  bool wait = false;
  /// Not 0: the daemon chooses the count, so that all trainers compute equally long per step, and together
  /// have about as many samples as if each had `nominal`, which is equal for all.
  uint32_t nominal = 0;
  double sampleSeconds = 0;  ///< with `nominal`: compute time per sample; 0: unknown
};

}  // namespace psd
