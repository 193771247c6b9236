#include "server/policy/round_moments.h"

#include <algorithm>

#include "common/types/split_mix.h"

namespace psd {

uint64_t momentIdOf(uint32_t rank, uint64_t incarnation, uint64_t step) {
  const uint64_t id = splitMix(splitMix(splitMix(rank) ^ incarnation) ^ step);
  return std::max<uint64_t>(id, 1);
}

}  // namespace psd
