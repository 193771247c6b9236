#pragma once

#include <cstdint>
#include <vector>

namespace psd {

/// The values of a model and the state of its optimizer, which replace those of a store. A value type.
struct ModelState {
  struct OfShard {
    uint64_t steps = 0;  ///< updates that the optimizer has made
    /// The values, then the optimizer's slots in order, each of all elements of the shard.
    std::vector<std::vector<float>> planes;
  };
  std::vector<OfShard> shards;  ///< of the arena, all of them
};

}  // namespace psd
