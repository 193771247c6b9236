#include "common/codec/sparse.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "common/types/finite.h"

namespace psd {
namespace {

// Magnitudes are sorted into bins by their exponent and three bits of the fraction.
constexpr uint32_t kBinShift = 20;
constexpr uint32_t kBins = 1u << (31 - kBinShift);
// Adjacent values often have similar magnitudes: with separate counters their increments do not depend on
// each other.
constexpr uint32_t kCounters = 4;
constexpr uint32_t kStride = 32;  // values that are skipped together if none of them is large

using Bins = std::array<std::array<uint32_t, kCounters>, kBins>;

/// The bin that holds the k-th largest magnitude, and the number of values in the bins above it.
std::pair<uint32_t, uint64_t> findBin(std::span<const float> values, uint64_t k) {
  Bins bins{};
  const size_t full = values.size() / kCounters * kCounters;
  for (size_t i = 0; i < full; i += kCounters) {
    for (uint32_t j = 0; j < kCounters; ++j) bins[magnitudeBits(values[i + j]) >> kBinShift][j]++;
  }
  for (size_t i = full; i < values.size(); ++i) bins[magnitudeBits(values[i]) >> kBinShift][0]++;
  uint64_t above = 0;
  for (uint32_t bin = kBins; bin-- > 0;) {
    const auto& counts = bins[bin];
    const uint64_t here = uint64_t{counts[0]} + counts[1] + counts[2] + counts[3];
    if (above + here >= k) return {bin, above};
    above += here;
  }
  return {0, above};
}

/// Calls take(i) for every value whose magnitudeBits() are at least `bits`, in order.
template <class Take>
void forLarge(std::span<const float> values, uint32_t bits, const Take& take) {
  vectorised([&]() PSD_VECTORISED {
    size_t begin = 0;
    for (; begin + kStride <= values.size(); begin += kStride) {
      uint32_t any = 0;
      for (uint32_t i = 0; i < kStride; ++i) any |= magnitudeBits(values[begin + i]) >= bits ? 1u : 0u;
      if (any == 0) continue;
      for (size_t i = begin; i < begin + kStride; ++i) {
        if (magnitudeBits(values[i]) >= bits) take(i);
      }
    }
    for (size_t i = begin; i < values.size(); ++i) {
      if (magnitudeBits(values[i]) >= bits) take(i);
    }
  });
}

uint64_t countNonZeros(std::span<const float> values) {
  uint64_t found = 0;
  vectorised([&]() PSD_VECTORISED {
    for (const float value : values) found += magnitudeBits(value) != 0 ? 1u : 0u;
  });
  return found;
}

}  // namespace

LargestValues findLargest(std::span<const float> values, uint64_t k) {
  const auto [bin, above] = findBin(values, k);
  std::vector<uint32_t> candidates;
  forLarge(values, bin << kBinShift, [&, bin = bin](size_t i) {
    const uint32_t bits = magnitudeBits(values[i]);
    if (bits >> kBinShift == bin) candidates.push_back(bits);
  });
  const uint64_t rank = k - above;  // of the k-th largest among the candidates, from 1
  const auto threshold = candidates.begin() + static_cast<ptrdiff_t>(rank - 1);
  std::nth_element(candidates.begin(), threshold, candidates.end(), std::greater<>());
  const auto larger =
      std::count_if(candidates.begin(), threshold, [&](uint32_t bits) { return bits > *threshold; });
  return {*threshold, rank - static_cast<uint64_t>(larger)};
}

template <class Takes>
void SparseCodec::writeLarge(std::span<const float> values, uint32_t bits, uint64_t k, std::byte* out,
                             const Takes& takes) {
  auto* const head = reinterpret_cast<uint32_t*>(out);
  auto* toValue = reinterpret_cast<float*>(out + valuesAt(values.size()));
  auto* toPlace = reinterpret_cast<uint16_t*>(toValue + k);
  head[0] = static_cast<uint32_t>(k);
  std::fill_n(head + 1, groupsOf(values.size()), 0u);
  forLarge(values, bits, [&](size_t i) {
    if (!takes(i)) return;
    *toValue++ = values[i];
    *toPlace++ = static_cast<uint16_t>(i % kGroup);
    head[1 + i / kGroup]++;
  });
}

Status SparseCodec::encode(std::span<const float> values, uint64_t, std::byte* out) const {
  const uint64_t k = kept(values.size());
  LargestValues largest = findLargest(values, k);
  writeLarge(values, largest.bits, k, out, [&](size_t i) {
    if (magnitudeBits(values[i]) != largest.bits || largest.equal-- != 0) return true;
    largest.equal = 0;  // enough equal magnitudes were found
    return false;
  });
  return {};
}

std::optional<SparseCodec::Encoded> SparseCodec::encodeNonZeros(std::span<const float> values,
                                                                uint64_t mostBytes) {
  const uint64_t k = countNonZeros(values);
  const uint64_t bytes = bytesFor(values.size(), k);
  if (bytes > mostBytes || !allFinite(values)) return {};
  auto memory = std::make_shared<std::vector<uint64_t>>((bytes + 7) / 8);
  auto* const out = reinterpret_cast<std::byte*>(memory->data());
  writeLarge(values, 1, k, out, [](size_t) { return true; });
  return Encoded{std::move(memory), Bytes(out, bytes)};
}

Status SparseCodec::check(Bytes bytes, uint64_t count) const {
  if (bytes.size() < valuesAt(count)) return badSize(name(), count, valuesAt(count), bytes.size());
  const uint32_t* const head = arrayAt<uint32_t>(bytes, 0);
  const uint64_t k = head[0];
  if (k > count) return badBytes(name(), "its count exceeds the slice");
  if (bytes.size() != bytesFor(count, k)) return badSize(name(), k, bytesFor(count, k), bytes.size());
  const uint16_t* places = arrayAt<uint16_t>(bytes, valuesAt(count) + k * sizeof(float));
  uint64_t left = k;
  for (uint64_t group = 0; group < groupsOf(count); ++group) {
    const uint64_t here = head[1 + group];
    if (here > left) return badBytes(name(), "its groups hold more values than its count");
    left -= here;
    uint32_t unordered = 0;
    for (uint64_t i = 1; i < here; ++i) unordered |= places[i - 1] >= places[i] ? 1u : 0u;
    if (unordered != 0) return badBytes(name(), "places do not ascend");
    if (here > 0 && group * kGroup + places[here - 1] >= count) {
      return badBytes(name(), "a place is past the last value");
    }
    places += here;
  }
  if (left != 0) return badBytes(name(), "its groups hold fewer values than its count");
  return allFinite({arrayAt<float>(bytes, valuesAt(count)), k}) ? Status() : nonFiniteValue(name());
}

void SparseCodec::decode(Bytes bytes, uint64_t count, uint64_t begin, std::span<float> out) const {
  std::fill(out.begin(), out.end(), 0.f);
  const uint32_t* const head = arrayAt<uint32_t>(bytes, 0);
  const float* values = arrayAt<float>(bytes, valuesAt(count));
  const uint16_t* places = arrayAt<uint16_t>(bytes, valuesAt(count) + uint64_t{head[0]} * sizeof(float));
  const uint64_t end = begin + out.size();
  for (uint64_t group = 0; group * kGroup < end; ++group) {
    const uint32_t here = head[1 + group];
    const uint64_t groupBegin = group * kGroup;
    if (groupBegin + kGroup > begin) {
      const uint64_t from = begin > groupBegin ? begin - groupBegin : 0;
      const uint16_t* at = std::lower_bound(places, places + here, from);
      for (; at != places + here && groupBegin + *at < end; ++at) {
        out[groupBegin + *at - begin] = values[at - places];
      }
    }
    values += here;
    places += here;
  }
}

void SparseCodec::entries(Bytes bytes, uint64_t count, uint64_t first, std::span<uint32_t> places,
                          std::span<float> values) const {
  if (places.empty()) return;
  const uint32_t* const head = arrayAt<uint32_t>(bytes, 0);
  const uint64_t valueBytes = uint64_t{head[0]} * sizeof(float);
  std::memcpy(values.data(), arrayAt<float>(bytes, valuesAt(count)) + first, values.size_bytes());
  const uint16_t* const in = arrayAt<uint16_t>(bytes, valuesAt(count) + valueBytes) + first;
  uint64_t group = 0, groupEnd = head[1];  // end of the entries of `group`
  for (size_t i = 0; i < places.size(); ++i) {
    while (first + i >= groupEnd) groupEnd += head[1 + ++group];
    places[i] = static_cast<uint32_t>(group * kGroup + in[i]);
  }
}

}  // namespace psd
