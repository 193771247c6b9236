#pragma once

#include <cstdint>
#include <vector>

#include "common/status/status.h"
#include "server/publish/version_part.h"

namespace psd {

/// A part of a tensor and the rank that gives it.
struct GivenPart {
  uint32_t rank = 0;
  uint32_t index = 0;  ///< among the rank's parts
  const VersionPart* part = nullptr;
};

/// Checks that the parts of one tensor, valid and in ascending order of the ranks, give each element once,
/// and returns those to send: of equal boxes with equal bytes the first, and no empty ones.
/// ErrorCode::invalidArgument names the elements and the ranks, overloaded: more parts than kTensorPartsMax.
Result<std::vector<GivenPart>> coverTensor(std::vector<GivenPart> given);
inline constexpr size_t kTensorPartsMax = 1u << 14;

}  // namespace psd
