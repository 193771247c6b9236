#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "common/types/ids.h"

namespace psd {

/// How trainers average the gradients of tensors among themselves. A value type.
struct AllReduceTerms {
  std::chrono::milliseconds timeout{0};  ///< after which a group continues without a member that does not
                                         ///< respond; 0: no averaging
  uint64_t bucketBytes = 0;              ///< of gradient per averaging call
  bool operator==(const AllReduceTerms&) const = default;
};

/// A member of an averaging group, and where the others reach it. A value type.
struct AveragingMember {
  Rank rank;
  std::string host;
  uint16_t port = 0;
  bool operator==(const AveragingMember&) const = default;
};

/// The longest host that an AveragingMember may have.
inline constexpr size_t kAveragingHostBytesMax = 255;

/// An averaging group, as seen by one of its members. A value type.
struct FormedGroup {
  uint64_t generation = 0;
  std::vector<AveragingMember> members;  ///< by rank; the first pushes the average
  uint32_t index = 0;                    ///< own place in `members`
  /// The version to which the trainer's previous group brought the model; 0: unknown.
  Version reached;
};

}  // namespace psd
