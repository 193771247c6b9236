#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "test/support/random.h"

namespace psd::testing {

inline std::vector<std::byte> randomBytes(uint64_t count, Random& random) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.between(0, 255));
  return bytes;
}

/// Changes element `index` to another value.
inline void changeElement(std::span<std::byte> tensor, uint64_t index, uint32_t elementBytes,
                          Random& random) {
  std::byte& byte = tensor[index * elementBytes + random.below(elementBytes)];
  byte ^= static_cast<std::byte>(random.between(1, 255));
}

/// Changes each element with probability `density`. Returns the number of them.
inline uint64_t scatterChanges(std::span<std::byte> tensor, double density, uint32_t elementBytes,
                               Random& random) {
  const uint64_t elements = tensor.size() / elementBytes;
  std::geometric_distribution<uint64_t> gap(density);
  uint64_t count = 0;
  for (uint64_t i = gap(random.engine()); i < elements; i += 1 + gap(random.engine()), count++) {
    changeElement(tensor, i, elementBytes, random);
  }
  return count;
}

/// Changes up to `runs` runs of up to `longest` adjacent elements.
inline void changeRuns(std::span<std::byte> tensor, uint64_t runs, uint64_t longest, uint32_t elementBytes,
                       Random& random) {
  const uint64_t elements = tensor.size() / elementBytes;
  if (elements == 0) return;
  std::vector<bool> changed(elements);
  for (; runs > 0; runs--) {
    const uint64_t begin = random.below(elements);
    const uint64_t end = std::min(elements, begin + random.between(1, longest));
    for (uint64_t i = begin; i < end; i++) {
      if (!changed[i]) changeElement(tensor, i, elementBytes, random);
      changed[i] = true;
    }
  }
}

}  // namespace psd::testing
