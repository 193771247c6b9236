#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/status/status.h"
#include "common/types/row_ids.h"
#include "server/membership/session_epoch.h"
#include "server/policy/update_policy.h"

namespace psd {

/// What of which gradient a slice carries: elements of a dense shard, or rows of a row shard. A value type.
struct SliceHead {
  Step step;
  uint32_t shard = 0;       ///< number of the parameter block
  uint64_t offset = 0;      ///< elements, from the shard's begin; rows, from the part's first row
  uint64_t count = 0;       ///< elements or rows
  Version basis;            ///< what the gradient was computed from
  uint32_t samples = 0;     ///< examples behind the gradient
  uint32_t localSteps = 0;  ///< that the trainer took by itself; 0: it is the gradient of one step
  uint32_t parts = 0;       ///< that the gradient has, one of each shard
  uint64_t total = 0;       ///< elements or rows that the part has in all
};

/// One slice of a trainer's gradient, however it came. A value type.
struct PushSlice {
  SliceHead head;
  Attachment attachment = {};  ///< that it came over
  Gradient gradient = std::span<const float>();
  std::optional<OwnedRowRuns> rows = {};       ///< whose gradients these are; nothing: a dense shard's
  std::shared_ptr<const void> held = nullptr;  ///< keeps gradient and ids readable; dropped on the home loop
  /// Keeps the DeviceRing in which the gradient lies, where the trainer may change it: to be copied first.
  /// Null elsewhere.
  std::shared_ptr<const void> ring = nullptr;
  /// Set by RingIntake: while it lives, the slices that came through a ring later wait to be looked at, so
  /// that they do not overtake this one.
  std::shared_ptr<const void> turn = nullptr;
};

/// What a slice is told. A value type.
struct PushReply {
  Result<PushAnswer> answer;           ///< to the slice that completes a step: the worst of what waited
  std::vector<uint32_t> dropped = {};  ///< see PushResult.dropped in the schema
};

}  // namespace psd
