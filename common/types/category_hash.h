#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "common/types/split_mix.h"

namespace psd {

/// The id of a category, a text in a field: the same in every version, on every machine, and in Python as
/// psd.hash_category(). With words of 8 bytes, little-endian, the last one filled up with zeros:
///
///   h = splitMix(field · 2^32 + length of the text in bytes)
///   h = splitMix(h xor word)    for each word of the text
///
/// Two texts of the same field and of at most 8 bytes never have the same id if they have the same length.
inline uint64_t categoryId(uint32_t field, std::string_view text) {
  static_assert(std::endian::native == std::endian::little);
  uint64_t hash = splitMix(uint64_t{field} << 32 | (text.size() & 0xffffffff));
  const char* at = text.data();
  size_t left = text.size();
  for (; left >= sizeof(uint64_t); left -= sizeof(uint64_t), at += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, at, sizeof word);
    hash = splitMix(hash ^ word);
  }
  if (left == 0) return hash;
  uint64_t word = 0;
  std::memcpy(&word, at, left);
  return splitMix(hash ^ word);
}

}  // namespace psd
