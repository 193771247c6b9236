#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "common/status/status.h"
#include "common/types/ids.h"

namespace psd {

/// Per shard the oldest version that any of these saw, at least one. Between two of them the model may have
/// moved to daemons that cut it otherwise: then they do not go together (deadlineExceeded: to be computed
/// anew).
inline Result<std::vector<Version>> oldestOf(const std::vector<const std::vector<Version>*>& all) {
  std::vector<Version> oldest = *all.front();
  for (const std::vector<Version>* each : all) {
    if (each->size() != oldest.size()) {
      return Error{ErrorCode::deadlineExceeded,
                   "the model has moved between the passes of this step, and is cut into other shards"};
    }
    for (size_t i = 0; i < oldest.size(); i++) oldest[i] = std::min(oldest[i], (*each)[i]);
  }
  return oldest;
}

}  // namespace psd
