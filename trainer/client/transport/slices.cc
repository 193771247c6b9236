#include "trainer/client/transport/slices.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "common/types/model_layout.h"

namespace psd {

DividedSlices::DividedSlices(std::vector<Slice> all, uint32_t links) : slices(std::move(all)), links(links) {
  std::vector<size_t> counts(links);
  places.reserve(slices.size());
  for (const Slice& slice : slices) {
    const uint32_t link = linkOf(slice.shard, links);
    places.push_back({link, counts[link]++});
  }
}

std::vector<Slice> cutIntoSlices(const ShardPlan& plan, uint64_t elementsMax) {
  constexpr uint64_t kGrain = kLayoutGrainElements;
  uint64_t most = std::max(elementsMax / kGrain * kGrain, kGrain);
  std::vector<Slice> slices;
  uint64_t nativeAt = 0;
  for (const ShardRange& shard : plan.shards) {
    const uint64_t elementBytes = dtypeBytes(shard.dtype);
    uint64_t pieces = (shard.count + most - 1) / most;
    uint64_t even = (shard.count + pieces - 1) / pieces;
    uint64_t piece = std::min((even + kGrain - 1) / kGrain * kGrain, most);
    for (uint64_t offset = 0; offset < shard.count; offset += piece) {
      slices.push_back({shard.id, offset, std::min(piece, shard.count - offset), shard.begin + offset,
                        shard.count, shard.dtype, nativeAt + offset * elementBytes});
    }
    nativeAt += shard.count * elementBytes;
  }
  return slices;
}

uint64_t largestSlice(const std::vector<Slice>& slices) {
  uint64_t largest = 0;
  for (const Slice& slice : slices) largest = std::max(largest, slice.count);
  return largest;
}

uint32_t slicesInFlight(const std::vector<Slice>& slices, uint32_t window, uint64_t elementsMax) {
  constexpr uint32_t kMost = 64;
  std::vector<uint64_t> counts;
  for (const Slice& slice : slices) counts.push_back(slice.count);
  std::ranges::sort(counts, std::greater<>());
  uint32_t found = 0;
  uint64_t together = 0;
  for (const uint64_t count : counts) {
    together += count;
    if (together > window * elementsMax || found == kMost) break;
    found++;
  }
  return std::max(found, window);
}

}  // namespace psd
