#pragma once

#include <chrono>
#include <vector>

#include "common/os/address.h"
#include "common/status/status.h"
#include "common/types/model_spec.h"

namespace psd {

/// The model of a running daemon at one moment. A value type.
struct LiveModel {
  ModelSpec spec;
  std::vector<float> values;  ///< of its tensors, as ModelLayout places them; rows of tables are not in it
};

/// Pulls a running daemon's parameters, each shard as its policy promises. Blocks, for `timeout` at most, and
/// must not be called on a thread that runs an event loop. Errors name the address.
Result<LiveModel> fetchModel(const Address& address, std::chrono::milliseconds timeout);

}  // namespace psd
