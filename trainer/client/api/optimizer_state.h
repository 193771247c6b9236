#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "common/types/ids.h"

namespace psd {

/// The values of a model and the state of its optimizer, each shard's of one moment. A value type.
struct OptimizerState {
  std::vector<Version> versions;  ///< per shard
  std::vector<uint64_t> steps;    ///< per shard, the updates that the optimizer has made
  /// Flat arrays in the model's layout: the values under "", the optimizer's states under their names, such
  /// as "exp_avg". 0 in shards whose optimizer does not have the state.
  std::map<std::string, std::vector<float>> arrays;
};

/// Such values and state to be restored. A value type; the arrays are the caller's.
struct StateToRestore {
  std::vector<uint64_t> steps;  ///< per shard
  std::map<std::string, std::span<const float>> arrays;
};

}  // namespace psd
