#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "test/support/random.h"

namespace psd::fuzz {

/// Writes a number of 1, 2, 4 or 8 bytes somewhere, usually one at the edge of a type.
inline void putNumber(std::string& bytes, testing::Random& random) {
  constexpr uint64_t kEdges[] = {0,      1,      7,          8,          0x7f,      0xff,
                                 0x7fff, 0xffff, 0x7fffffff, 0xffffffff, INT64_MAX, UINT64_MAX};
  const uint64_t number =
      random.oneIn(4) ? random.between(0, UINT64_MAX) : kEdges[random.below(std::size(kEdges))];
  const size_t size = std::min(bytes.size(), size_t{1} << random.below(4));
  std::memcpy(bytes.data() + random.below(bytes.size() - size + 1), &number, size);
}

/// One of the seeds with a few changes: bits, numbers, pieces that are removed, duplicated, or taken from
/// another seed.
inline std::string mutated(const std::vector<std::string>& seeds, testing::Random& random) {
  std::string bytes = seeds[random.below(seeds.size())];
  for (uint64_t changes = random.between(1, 4); changes > 0; changes--) {
    const std::string& other = seeds[random.below(seeds.size())];
    if (bytes.empty()) bytes = other;
    if (bytes.empty()) return bytes;
    const size_t at = random.below(bytes.size());
    const size_t length = std::min<size_t>(bytes.size() - at, random.between(1, random.oneIn(2) ? 8 : 200));
    switch (random.below(6)) {
      case 0: bytes[at] = static_cast<char>(bytes[at] ^ 1 << random.below(8)); break;
      case 1: putNumber(bytes, random); break;
      case 2: bytes.erase(at, length); break;
      case 3: bytes.insert(at, bytes.substr(at, length)); break;
      case 4: bytes.resize(at); break;
      default: bytes.insert(at, other.substr(std::min(at, other.size()), length)); break;
    }
  }
  return bytes;
}

}  // namespace psd::fuzz
