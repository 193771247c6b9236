#include "common/patch/patch_block.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/patch/instruction_sets.h"

namespace psd {
namespace {

constexpr uint32_t kHeadBytes = 8;
/// The longest positions of a block, and a word past their end.
using PositionBytes = std::array<std::byte, kPatchBlockElements / 4 + sizeof(uint64_t)>;

constexpr uint32_t bytesOf(uint64_t bits) { return static_cast<uint32_t>((bits + 7) / 8); }
constexpr uint32_t wordsOf(uint32_t bits) { return (bits + 63) / 64; }

PSD_BEST_INSTRUCTIONS inline uint64_t load(const std::byte* from) {
  uint64_t word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

template <class Number>
Number take(std::span<const std::byte>& bytes) {
  Number number;
  std::memcpy(&number, bytes.data(), sizeof number);
  bytes = bytes.subspan(sizeof number);
  return number;
}

struct Counts {
  uint32_t changed = 0, runs = 0;
  bool toEnd = false;  // whether the last run ends with the block

  uint32_t boundaries() const { return 2 * runs - (toEnd ? 1 : 0); }
};

Counts countIn(const ChangedBits& changed, uint32_t elements) {
  const uint32_t words = wordsOf(elements);
  Counts counts = withBestInstructions([bits = changed.data(), words]() PSD_BEST_INSTRUCTIONS {
    uint32_t ones = 0, starts = 0;
    uint64_t before = 0;
    for (uint32_t i = 0; i < words; ++i) {
      ones += static_cast<uint32_t>(std::popcount(bits[i]));
      starts += static_cast<uint32_t>(std::popcount(bits[i] & ~(bits[i] << 1 | before)));
      before = bits[i] >> 63;
    }
    return Counts{ones, starts};
  });
  counts.toEnd = (changed[(elements - 1) / 64] >> (elements - 1) % 64 & 1) != 0;
  return counts;
}

/// Writes the places of the set bits, and past them up to kAtOnce more: most words have a few bits, and a
/// branch for each number of them would be mispredicted.
constexpr uint32_t kAtOnce = 4;
void placesOf(const uint64_t* bits, uint32_t words, uint16_t* out) {
  withBestInstructions([=]() PSD_BEST_INSTRUCTIONS {
    uint16_t* to = out;
    for (uint32_t i = 0; i < words; ++i) {
      uint64_t word = bits[i];
      const auto count = static_cast<uint32_t>(std::popcount(word));
      const auto next = [&](uint32_t place) PSD_BEST_INSTRUCTIONS {
        to[place] = static_cast<uint16_t>(i * 64 + static_cast<uint32_t>(std::countr_zero(word)));
        word &= word - 1;
      };
      for (uint32_t place = 0; place < kAtOnce; ++place) next(place);
      for (uint32_t place = kAtOnce; place < count; ++place) next(place);
      to += count;
    }
  });
}

/// A boundary is an element that differs from the one before in whether it is changed.
void boundariesOf(const ChangedBits& changed, uint32_t elements, uint16_t* out) {
  ChangedBits edges;
  const uint32_t words = wordsOf(elements);
  uint64_t before = 0;
  for (uint32_t i = 0; i < words; ++i) {
    edges[i] = changed[i] ^ (changed[i] << 1 | before);
    before = changed[i] >> 63;
  }
  // The end of the block is no position.
  if (elements % 64 != 0) edges[words - 1] &= (uint64_t{1} << elements % 64) - 1;
  placesOf(edges.data(), words, out);
}

/// `out` is zero.
void encode(std::span<const uint16_t> positions, uint32_t universe, std::byte* out) {
  const EliasFano code(static_cast<uint32_t>(positions.size()), universe);
  std::array<uint64_t, kPatchBlockElements / 32 + 1> high;
  std::fill_n(high.data(), code.highBytes / sizeof(uint64_t) + 1, 0);
  const uint64_t mask = (uint64_t{1} << code.lowBits) - 1;
  std::byte* low = out;
  uint64_t bits = 0;
  uint32_t held = 0;
  for (uint32_t i = 0; i < positions.size(); ++i) {
    const uint32_t bit = (positions[i] >> code.lowBits) + i;
    high[bit / 64] |= uint64_t{1} << bit % 64;
    bits |= (positions[i] & mask) << held;
    held += code.lowBits;
    if (held >= 32) {
      std::memcpy(low, &bits, 4);
      low += 4;
      bits >>= 32;
      held -= 32;
    }
  }
  std::memcpy(low, &bits, bytesOf(held));
  std::memcpy(out + code.lowBytes, high.data(), code.highBytes);
}

/// Decodes `count` positions; whether as many were set. A word past the end of `in` is readable.
bool decode(const std::byte* in, EliasFano code, uint32_t count, uint16_t* out) {
  return withBestInstructions([=]() PSD_BEST_INSTRUCTIONS {
    const uint64_t mask = (uint64_t{1} << code.lowBits) - 1;
    const std::byte* const high = in + code.lowBytes;
    uint32_t found = 0, at = 0;
    for (uint32_t byte = 0; byte < code.highBytes; byte += sizeof(uint64_t)) {
      uint64_t word = load(high + byte);
      const uint32_t left = code.highBytes - byte;
      if (left < sizeof word) word &= (uint64_t{1} << 8 * left) - 1;
      const auto ones = static_cast<uint32_t>(std::popcount(word));
      if (ones > count - found) return false;
      for (uint32_t i = 0; i < ones; ++i, ++found, word &= word - 1, at += code.lowBits) {
        const uint32_t bucket = byte * 8 + static_cast<uint32_t>(std::countr_zero(word)) - found;
        const uint64_t low = load(in + at / 8) >> at % 8 & mask;
        out[found] = static_cast<uint16_t>(bucket << code.lowBits | low);
      }
    }
    return found == count;
  });
}

bool ascend(std::span<const uint16_t> positions) {
  return withBestInstructions([at = positions.data(), count = positions.size()]() PSD_BEST_INSTRUCTIONS {
    uint16_t unordered = 0;
    for (size_t i = 1; i < count; ++i) unordered |= at[i - 1] >= at[i] ? 1 : 0;
    return unordered == 0;
  });
}

template <class T>
void gather(const std::byte* values, std::span<const uint16_t> positions, std::byte* out) {
  for (const uint16_t position : positions) {
    std::memcpy(out, values + position * sizeof(T), sizeof(T));
    out += sizeof(T);
  }
}

Error damaged(const char* why) { return {ErrorCode::io, why}; }

}  // namespace

EliasFano::EliasFano(uint32_t count, uint32_t universe)
    : lowBits(static_cast<uint32_t>(std::bit_width(universe / count)) - 1),
      lowBytes(bytesOf(uint64_t{count} * lowBits)),
      highBytes(bytesOf(count + ((universe - 1) >> lowBits))) {}

void PatchBlockWriter::writeValues(const std::byte* values, const Choice& choice, uint32_t elements,
                                   std::byte* out) const {
  const std::span<const uint16_t> positions = choice.positions;
  if (choice.kind == PatchPositions::runs) {
    const PatchBlock block{.elements = elements, .positions = positions};
    block.forEachRun(0, [&](uint32_t begin, uint32_t end, const std::byte*) {
      const uint64_t bytes = uint64_t{end - begin} * elementBytes_;
      std::memcpy(out, values + uint64_t{begin} * elementBytes_, bytes);
      out += bytes;
    });
    return;
  }
  switch (elementBytes_) {
    case 1: return gather<uint8_t>(values, positions, out);
    case 2: return gather<uint16_t>(values, positions, out);
    case 4: return gather<uint32_t>(values, positions, out);
    default: return gather<uint64_t>(values, positions, out);
  }
}

PatchBlockWriter::Choice PatchBlockWriter::choose(const ChangedBits& changed, uint32_t elements,
                                                  std::span<const uint16_t> places, uint32_t boundaries) {
  const uint32_t asElements = EliasFano(static_cast<uint32_t>(places.size()), elements).bytes(),
                 asRuns = EliasFano(boundaries, elements).bytes(), asBitmap = bytesOf(elements),
                 asOneRun = EliasFano(1, elements).bytes();
  const uint32_t least = std::min({asElements, asRuns, asBitmap});
  const uint64_t valueBytes = places.size() * elementBytes_, allBytes = uint64_t{elements} * elementBytes_;
  if (asOneRun + allBytes < least + valueBytes) {
    // One run over the whole block, which overwrites unchanged elements with their values.
    boundaries_.assign(1, 0);
    return {PatchPositions::runs, boundaries_, asOneRun, allBytes};
  }
  if (least == asElements) return {PatchPositions::elements, places, least, valueBytes};
  if (least == asBitmap) return {PatchPositions::bitmap, places, least, valueBytes};
  boundaries_.resize(boundaries + kAtOnce);
  boundariesOf(changed, elements, boundaries_.data());
  return {PatchPositions::runs, std::span(boundaries_).first(boundaries), least, valueBytes};
}

std::span<const uint16_t> PatchBlockWriter::append(uint32_t index, uint32_t elements,
                                                   const ChangedBits& changed, const std::byte* values,
                                                   std::vector<std::byte>& out) {
  const Counts counts = countIn(changed, elements);
  if (counts.changed == 0) return {};
  positions_.resize(std::max<size_t>(positions_.size(), elements + kAtOnce));
  placesOf(changed.data(), wordsOf(elements), positions_.data());
  const std::span<const uint16_t> places(positions_.data(), counts.changed);

  const Choice choice = choose(changed, elements, places, counts.boundaries());
  const size_t begin = out.size();
  out.resize(begin + kHeadBytes + choice.positionBytes + choice.valueBytes);
  std::byte* to = out.data() + begin;
  const auto lastPosition = static_cast<uint16_t>(choice.positions.size() - 1);
  std::memcpy(to, &index, 4);
  std::memcpy(to + 4, &choice.kind, 2);
  std::memcpy(to + 6, &lastPosition, 2);
  to += kHeadBytes;
  if (choice.kind == PatchPositions::bitmap) {
    std::memcpy(to, changed.data(), choice.positionBytes);
  } else {
    encode(choice.positions, elements, to);
  }
  writeValues(values, choice, elements, to + choice.positionBytes);
  return places;
}

PatchBlockReader::PatchBlockReader(std::span<const std::byte> bytes, uint64_t elements, uint32_t elementBytes)
    : rest_(bytes), elements_(elements), elementBytes_(elementBytes) {}

Status PatchBlockReader::readPositions(PatchPositions kind, uint32_t count) {
  const bool bitmap = kind == PatchPositions::bitmap;
  if (count > block_.elements) return damaged("a block has more positions than elements");
  const EliasFano code(count, block_.elements);
  const uint32_t bytes = bitmap ? bytesOf(block_.elements) : code.bytes();
  if (bytes > rest_.size()) return damaged("the positions of a block are truncated");
  positions_.resize(std::max<size_t>(positions_.size(), count + kAtOnce));
  PositionBytes in;
  std::memcpy(in.data(), rest_.data(), bytes);
  std::memset(in.data() + bytes, 0, sizeof(uint64_t));
  rest_ = rest_.subspan(bytes);
  if (bitmap) {
    ChangedBits bits;
    const uint32_t words = wordsOf(block_.elements);
    std::memcpy(bits.data(), in.data(), words * sizeof(uint64_t));
    if (countIn(bits, words * 64).changed != count)
      return damaged("a bitmap does not match its block's count");
    placesOf(bits.data(), words, positions_.data());
  } else if (!decode(in.data(), code, count, positions_.data())) {
    return damaged("the positions of a block do not match its count");
  }
  block_.positions = {positions_.data(), count};
  if (!ascend(block_.positions)) return damaged("positions do not ascend");
  if (block_.positions.back() >= block_.elements) return damaged("a position is past the last element");
  return {};
}

Result<const PatchBlock*> PatchBlockReader::next() {
  if (rest_.empty()) return nullptr;
  if (rest_.size() < kHeadBytes) return damaged("the head of a block is truncated");
  const std::byte* const begin = rest_.data();
  block_.index = take<uint32_t>(rest_);
  const auto kind = static_cast<PatchPositions>(take<uint16_t>(rest_));
  const uint32_t count = take<uint16_t>(rest_) + uint32_t{1};
  if (block_.index < nextIndex_) return damaged("blocks do not ascend");
  if (block_.firstElement() >= elements_) return damaged("a block is past the end of the tensor");
  if (kind > PatchPositions::bitmap) return damaged("a block has an unknown kind of positions");
  nextIndex_ = uint64_t{block_.index} + 1;
  block_.elements =
      static_cast<uint32_t>(std::min<uint64_t>(kPatchBlockElements, elements_ - block_.firstElement()));
  block_.runs = kind == PatchPositions::runs;
  PSD_RETURN_IF_ERROR(readPositions(kind, count));
  uint64_t values = block_.positions.size();
  if (block_.runs) {
    values = 0;
    block_.forEachRun(0, [&](uint32_t from, uint32_t to, const std::byte*) { values += to - from; });
  }
  if (values * elementBytes_ > rest_.size()) return damaged("the values of a block are truncated");
  block_.values = rest_.data();
  rest_ = rest_.subspan(values * elementBytes_);
  block_.bytes = {begin, rest_.data()};
  return &block_;
}

}  // namespace psd
