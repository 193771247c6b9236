#include "server/store/rows/admission_filter.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace psd {
namespace {

constexpr uint32_t kAddsOfPush = 16;  // additions to a block, per significant count, until it is aged

}  // namespace

AdmissionFilter::Terms AdmissionFilter::Terms::of(uint32_t pushes, uint64_t bytes) {
  const uint64_t blocks = std::max<uint64_t>(bytes / kBlockBytes, 1);
  return {pushes, std::min<uint32_t>(static_cast<uint32_t>(std::bit_width(blocks)) - 1, kBlockBitsMax)};
}

AdmissionFilter::AdmissionFilter(Terms terms, HashRange range)
    : terms_(terms), first_(blockOf(range.first)), blocks_(blocksOf(terms, range)) {}

AdmissionFilter::Places AdmissionFilter::placesOf(uint64_t hash) {
  constexpr uint32_t kBits = 21;
  const uint64_t mixed = splitMix(hash);
  Places places;
  for (uint32_t i = 0; i < places.size(); i++) {
    const uint64_t part = mixed >> (i * kBits) & ((uint64_t{1} << kBits) - 1);
    places[i] = static_cast<uint32_t>(part * std::tuple_size_v<decltype(Block::counters)> >> kBits);
  }
  return places;
}

uint32_t AdmissionFilter::count(uint64_t hash) const {
  const Block& block = blocks_[blockOf(hash) - first_];
  uint8_t least = UINT8_MAX;
  for (const uint32_t place : placesOf(hash)) least = std::min(least, block.counters[place]);
  return least;
}

void AdmissionFilter::add(uint64_t hash) {
  Block& block = blocks_[blockOf(hash) - first_];
  const uint32_t least = count(hash);
  for (const uint32_t place : placesOf(hash)) {
    uint8_t& counter = block.counters[place];
    if (counter == least && counter < UINT8_MAX) counter++;
  }
  if (++block.adds < kAddsOfPush * (terms_.pushes - 1)) return;
  block.adds = 0;
  for (uint8_t& counter : block.counters) counter /= 2;
}

std::vector<uint64_t> AdmissionFilter::saved() const {
  std::vector<uint64_t> words;
  for (size_t i = 0; i < blocks_.size(); i++) {
    std::array<uint64_t, kSavedWords - 1> own;
    std::memcpy(own.data(), &blocks_[i], sizeof own);
    if (std::ranges::all_of(own, [](uint64_t word) { return word == 0; })) continue;
    words.push_back(first_ + i);
    words.insert(words.end(), own.begin(), own.end());
  }
  return words;
}

bool AdmissionFilter::restore(std::span<const uint64_t> saved) {
  if (saved.size() % kSavedWords != 0) return false;
  for (; !saved.empty(); saved = saved.subspan(kSavedWords)) {
    const uint64_t number = saved.front();
    if (number >> terms_.blockBits != 0) return false;
    if (number < first_ || number - first_ >= blocks_.size()) continue;
    Block theirs;
    std::memcpy(static_cast<void*>(&theirs), &saved[1], sizeof theirs);
    Block& own = blocks_[number - first_];
    const uint32_t most = kAddsOfPush * (terms_.pushes - 1) - 1;
    own.adds = static_cast<uint16_t>(std::min<uint32_t>(std::max(own.adds, theirs.adds), most));
    for (size_t i = 0; i < own.counters.size(); i++) {
      own.counters[i] = std::max(own.counters[i], theirs.counters[i]);
    }
  }
  return true;
}

}  // namespace psd
