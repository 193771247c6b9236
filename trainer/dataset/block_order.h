#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace psd {

/// A seeded order of the samples of one epoch, for a data set that reads blocks of successive samples: the
/// blocks in random order, then the samples of each group of kGroupBlocks blocks in random order. Reading
/// the samples in this order requires one group in memory at a time, and each block once. A pure function of
/// its inputs. Immutable.
class BlockOrder {
 public:
  static constexpr size_t kGroupBlocks = 8;

  /// `begins`: the first sample of each block, in ascending order from 0; outlives it.
  BlockOrder(uint64_t seed, uint64_t epoch, std::span<const uint32_t> begins, uint32_t sampleCount);

  /// The group that holds the sample at `position`, which is below the number of samples.
  size_t groupAt(uint32_t position) const;
  /// The position of the first sample of a group.
  uint32_t beginOf(size_t group) const { return groupBegins_[group]; }
  /// The samples of a group, in order.
  std::vector<uint32_t> samplesOf(size_t group) const;

 private:
  uint32_t endOf(uint32_t block) const;

  const uint64_t seed_, epoch_;
  const std::span<const uint32_t> begins_;
  const uint32_t sampleCount_;
  std::vector<uint32_t> blocks_;  ///< in random order
  std::vector<uint32_t> groupBegins_;
};

}  // namespace psd
