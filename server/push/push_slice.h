#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/status/status.h"
#include "common/types/row_ids.h"
#include "server/membership/session_fence.h"
#include "server/policy/update_policy.h"

namespace psd {

/// Identifies a slice of a gradient: elements of a dense shard, or rows of a row shard. A value type.
struct SliceHead {
  Step step;
  uint32_t shard = 0;       ///< number of the parameter block
  uint64_t offset = 0;      ///< elements from the start of the shard; rows from the first row of the part
  uint64_t count = 0;       ///< elements or rows
  Version basis;            ///< version that the gradient was computed from
  uint32_t samples = 0;     ///< examples in the gradient
  uint32_t localSteps = 0;  ///< local steps that the trainer took; 0: the gradient of a single step
  uint32_t parts = 0;       ///< parts of the gradient, one per shard
  uint64_t total = 0;       ///< elements or rows in the complete part
  /// Hyperparameters of the step in this shard; null: the optimizer's own.
  std::shared_ptr<const Hyperparameters> hyperparameters = {};
  uint64_t leadRound = 0;  ///< RoundMoment::number that the trainer gives the round; 0: none
};

/// One slice of a trainer's gradient, regardless of transport. A value type.
struct PushSlice {
  SliceHead head;
  Attachment attachment = {};  ///< the attachment that delivered it
  Gradient gradient = std::span<const float>();
  std::optional<OwnedRowRuns> rows = {};       ///< row ids of the gradient; nothing: a dense shard
  std::shared_ptr<const void> held = nullptr;  ///< keeps gradient and ids valid; dropped on the home loop
  /// Keeps the DeviceRing alive if the gradient lies in it and the trainer may change it, so it must be
  /// copied first. Null otherwise.
  std::shared_ptr<const void> ring = nullptr;
  /// Set by RingIntake: while it lives, slices that arrived through a ring later are not processed, so they
  /// cannot overtake this one.
  std::shared_ptr<const void> turn = nullptr;
};

/// The answer to a slice. A value type.
struct PushReply {
  Result<PushAnswer> answer;           ///< for the slice that completes a step: the worst outcome
  std::vector<uint32_t> dropped = {};  ///< see PushResult.dropped in the schema
};

}  // namespace psd
