#include "trainer/dataset/epoch_samples.h"

#include <algorithm>

namespace psd {

EpochSamples::EpochSamples(uint64_t seed, const Dataset& data, Rank rank, uint32_t worldSize)
    : seed_(seed),
      sampleCount_(static_cast<uint32_t>(data.sampleCount())),
      blocks_(data.blocks()),
      sharder_(seed, sampleCount_, rank, worldSize) {}

std::span<const uint32_t> EpochSamples::take(uint64_t epoch, uint64_t begin, uint64_t count) {
  const bool isNew = epoch_ != epoch;
  epoch_ = epoch;
  if (!blocks_.empty()) {
    if (isNew) {
      order_.emplace(seed_, epoch, blocks_, sampleCount_);
      group_.reset();
    }
    return takeByBlocks(sharder_.begin() + static_cast<uint32_t>(begin), count);
  }
  if (isNew) part_ = sharder_.part(epoch);
  return std::span(part_).subspan(begin, count);
}

std::span<const uint32_t> EpochSamples::takeByBlocks(uint32_t position, uint64_t count) {
  taken_.clear();
  while (taken_.size() < count) {
    const size_t group = order_->groupAt(position);
    if (group_ != group) groupSamples_ = order_->samplesOf(group);
    group_ = group;
    const auto more = std::span(groupSamples_).subspan(position - order_->beginOf(group));
    const size_t taken = std::min<size_t>(more.size(), count - taken_.size());
    taken_.insert(taken_.end(), more.begin(), more.begin() + static_cast<ptrdiff_t>(taken));
    position += static_cast<uint32_t>(taken);
  }
  return taken_;
}

}  // namespace psd
