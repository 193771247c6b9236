#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "trainer/dataset/block_order.h"
#include "trainer/dataset/dataset.h"
#include "trainer/dataset/sharder.h"

namespace psd {

/// The samples of a trainer's part of each epoch: by the sharder's permutation or, for a data set that reads
/// blocks, of which only a part of the order is in memory, by a BlockOrder. Owned by one thread; the data set
/// outlives it.
class EpochSamples {
 public:
  EpochSamples(uint64_t seed, const Dataset& data, Rank rank, uint32_t worldSize);

  uint32_t partSize() const { return sharder_.partSize(); }
  /// `count` samples of the part from `begin` on; valid until the next call.
  std::span<const uint32_t> take(uint64_t epoch, uint64_t begin, uint64_t count);

 private:
  std::span<const uint32_t> takeByBlocks(uint32_t position, uint64_t count);

  const uint64_t seed_;
  const uint32_t sampleCount_;
  const std::span<const uint32_t> blocks_;  ///< of the data set; empty: it has none
  const Sharder sharder_;
  std::optional<uint64_t> epoch_;  ///< of the following
  std::vector<uint32_t> part_;     ///< without blocks
  std::optional<BlockOrder> order_;
  std::optional<size_t> group_;  ///< whose samples are the following
  std::vector<uint32_t> groupSamples_;
  std::vector<uint32_t> taken_;
};

}  // namespace psd
