#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "common/types/ids.h"

namespace psd {

/// How trainers average the gradients of tensors among themselves. A value type.
struct AllReduceTerms {
  std::chrono::milliseconds timeout{
      0};                    ///< after which a group goes on without a member that is silent; 0: no averaging
  uint64_t bucketBytes = 0;  ///< of gradient in one call to average
  bool operator==(const AllReduceTerms&) const = default;
};

/// A trainer of a group that averages gradients, and where the others reach it. A value type.
struct AveragingMember {
  Rank rank;
  std::string host;
  uint16_t port = 0;
  bool operator==(const AveragingMember&) const = default;
};

/// The longest host that a AveragingMember may have.
inline constexpr size_t kGroupHostBytesMax = 255;

/// A group of trainers that average gradients, as one of them is told of it. A value type.
struct FormedGroup {
  uint64_t generation = 0;
  std::vector<AveragingMember> members;  ///< by rank; the first pushes what they average
  uint32_t index = 0;                    ///< which of them one is
  /// The version that the group before, which the trainer named, brought the model to; 0: nobody knows.
  Version reached;
};

}  // namespace psd
