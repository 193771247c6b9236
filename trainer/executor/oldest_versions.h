#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "common/status/status.h"
#include "common/types/ids.h"

namespace psd {

/// The oldest version of each shard among `all`, which must not be empty. If the model has moved between two
/// passes to daemons with different shards, the versions cannot be combined: deadlineExceeded, so that the
/// trainer recomputes the step.
inline Result<std::vector<Version>> oldestOf(const std::vector<const std::vector<Version>*>& all) {
  std::vector<Version> oldest = *all.front();
  for (const std::vector<Version>* each : all) {
    if (each->size() != oldest.size()) {
      return Error{ErrorCode::deadlineExceeded,
                   "the model has moved between the passes of this step, and is divided into other shards"};
    }
    for (size_t i = 0; i < oldest.size(); i++) oldest[i] = std::min(oldest[i], (*each)[i]);
  }
  return oldest;
}

}  // namespace psd
