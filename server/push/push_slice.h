#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/status/status.h"
#include "server/membership/session_epoch.h"
#include "server/policy/update_policy.h"

namespace psd {

/// Which elements of which gradient a slice carries. A value type.
struct SliceHead {
  Step step;
  uint32_t shard = 0;
  uint64_t offset = 0;   ///< elements, from the shard's begin
  uint64_t count = 0;    ///< elements
  Version basis;         ///< what the gradient was computed from
  uint32_t samples = 0;  ///< examples behind the gradient
  uint32_t parts = 0;    ///< that the gradient has, one of each shard
};

/// One slice of a trainer's gradient, however it came. A value type.
struct PushSlice {
  SliceHead head;
  Attachment attachment = {};  ///< that it came over
  Gradient gradient = std::span<const float>();
  std::shared_ptr<const void> held = nullptr;  ///< keeps the gradient readable; dropped on the home loop
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
