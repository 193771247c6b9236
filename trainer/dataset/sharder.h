#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/types/ids.h"

namespace psd {

/// Divides the samples of each epoch among the trainers: one seeded permutation per epoch, cut into
/// world-size contiguous parts. The parts are disjoint and cover every sample; their sizes differ by at most
/// one, and the lower ranks have the larger parts. A pure function of its inputs, so trainers agree without
/// communication. A trainer's last batch of an epoch holds the remainder, so two trainers' step counts may
/// differ by one per epoch.
///
/// Immutable value type.
class Sharder {
 public:
  /// rank < worldSize <= sampleCount <= 2^32 − 1.
  Sharder(uint64_t seed, uint32_t sampleCount, Rank rank, uint32_t worldSize);

  /// This trainer's samples of `epoch` (from 0), in the order of training.
  std::vector<uint32_t> part(uint64_t epoch) const;
  /// Size of part(), the same in every epoch.
  uint32_t partSize() const { return end_ - begin_; }
  /// The position of part() in the order of all trainers' parts.
  uint32_t begin() const { return begin_; }

 private:
  uint64_t seed_;
  uint32_t sampleCount_;
  uint32_t begin_;  ///< of this trainer's part in the permutation
  uint32_t end_;
};

}  // namespace psd
