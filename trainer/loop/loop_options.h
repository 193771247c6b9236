#pragma once

#include <cstdint>
#include <optional>

#include "common/types/model_spec.h"
#include "trainer/client/api/client.h"
#include "trainer/loop/collective.h"

namespace psd {

/// A batch whose size the daemon chooses has at most this multiple of LoopOptions::batchSize samples.
inline constexpr uint32_t kAutoBatchFactorMax = 8;

/// Options of a training loop. A value type.
struct LoopOptions {
  Membership membership;
  uint32_t batchSize = 32;  ///< samples per step; the last step of an epoch takes the remainder
  uint64_t epochs = 1;
  uint64_t steps = 0;  ///< if not 0: number of steps, in place of `epochs`
  uint64_t seed = 1;   ///< seed of the order of the samples; the same for all trainers
  /// Pushes that may be unanswered when the next step begins; 0: the loop waits for each. If not 0, gradients
  /// are sent while the rest is computed.
  uint32_t inflight = 0;
  /// The daemon assigns the samples of each step; otherwise each rank has a fixed part. Requires `steps` = 0.
  bool assignedSamples = false;
  /// With assignedSamples: the daemon chooses the size of each batch so that steps take equally long on all
  /// trainers, which together process about as many samples as with `batchSize` each.
  bool autoBatch = false;
  /// Samples, parameters and rows of the next step are fetched while this one computes.
  bool prefetch = false;
  /// Makes averaging groups, for the policy `allreduce`; outlives the loop. Null: this trainer cannot
  /// average.
  CollectiveMaker* averaging = nullptr;
  /// The model as presented to the daemon, if its names differ from the model's own.
  std::optional<ModelSpec> presentedAs = {};
};

}  // namespace psd
