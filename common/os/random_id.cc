#include "common/os/random_id.h"

#include <random>

namespace psd {

uint64_t drawId() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;
}

}  // namespace psd
