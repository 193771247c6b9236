#include "common/os/random_id.h"

#include <cerrno>
#include <cstdlib>

#include <sys/random.h>

namespace psd {

uint64_t drawBits() {
  uint64_t bits = 0;
  // A few bytes arrive at once; only the wait for the kernel's first randomness after boot is interruptible.
  while (getrandom(&bits, sizeof bits, 0) != sizeof bits) {
    if (errno != EINTR) std::abort();
  }
  return bits;
}

uint64_t drawId() { return drawBits() | 1; }

}  // namespace psd
