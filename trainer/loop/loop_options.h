#pragma once

#include <cstdint>
#include <optional>

#include "common/types/model_spec.h"
#include "trainer/client/client.h"
#include "trainer/loop/collective.h"

namespace psd {

/// A batch of which the daemon chooses the size has at most so many times LoopOptions::batchSize samples.
inline constexpr uint32_t kAutoBatchMost = 8;

/// How a trainer trains. A value type.
struct LoopOptions {
  Membership membership;
  uint32_t batchSize = 32;  ///< samples per step; the last step of an epoch takes what is left
  uint64_t epochs = 1;
  uint64_t steps = 0;  ///< if not 0: train this many steps instead of whole epochs
  uint64_t seed = 1;   ///< of the order of the samples; the same for all trainers
  /// Pushes that may be unanswered when the next step begins; 0: each is waited for. If not 0, gradients are
  /// sent while the rest of them is computed.
  uint32_t inflight = 0;
  /// Whether the daemon deals the samples, step by step, instead of a fixed part to each rank. Then `steps`
  /// is 0.
  bool dealtSamples = false;
  /// With dealtSamples: the daemon chooses the size of each batch, so that all trainers compute as long for a
  /// step, and together have about as many samples as with `batchSize` each.
  bool autoBatch = false;
  /// Whether samples, parameters and rows of the next step are brought while this one computes.
  bool prefetch = false;
  /// Makes the groups of trainers that average gradients, where the daemon's policy has them do so; outlives
  /// the loop. Null: this trainer does not.
  CollectiveMaker* averaging = nullptr;
  /// The model as the daemon knows it, if other than by its own names.
  std::optional<ModelSpec> presentedAs = {};
};

}  // namespace psd
