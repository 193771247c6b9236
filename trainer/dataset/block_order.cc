#include "trainer/dataset/block_order.h"

#include <algorithm>
#include <numeric>

#include "trainer/dataset/random.h"

namespace psd {
namespace {

/// Fisher–Yates.
void shuffle(std::vector<uint32_t>& values, Random random) {
  for (auto last = static_cast<uint32_t>(values.size()); last > 1; --last) {
    std::swap(values[last - 1], values[random.below(last)]);
  }
}

}  // namespace

BlockOrder::BlockOrder(uint64_t seed, uint64_t epoch, std::span<const uint32_t> begins, uint32_t sampleCount)
    : seed_(seed), epoch_(epoch), begins_(begins), sampleCount_(sampleCount), blocks_(begins.size()) {
  std::iota(blocks_.begin(), blocks_.end(), 0u);
  shuffle(blocks_, Random(seed, epoch));
  uint32_t position = 0;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (i % kGroupBlocks == 0) groupBegins_.push_back(position);
    position += endOf(blocks_[i]) - begins_[blocks_[i]];
  }
}

uint32_t BlockOrder::endOf(uint32_t block) const {
  return block + 1 < begins_.size() ? begins_[block + 1] : sampleCount_;
}

size_t BlockOrder::groupAt(uint32_t position) const {
  return static_cast<size_t>(std::ranges::upper_bound(groupBegins_, position) - groupBegins_.begin()) - 1;
}

std::vector<uint32_t> BlockOrder::samplesOf(size_t group) const {
  std::vector<uint32_t> samples;
  const size_t end = std::min(blocks_.size(), (group + 1) * kGroupBlocks);
  for (size_t i = group * kGroupBlocks; i < end; ++i) {
    for (uint32_t sample = begins_[blocks_[i]]; sample < endOf(blocks_[i]); ++sample)
      samples.push_back(sample);
  }
  shuffle(samples, Random(~seed_ + group, epoch_));
  return samples;
}

}  // namespace psd
