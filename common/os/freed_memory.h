#pragma once

#include <malloc.h>

namespace psd {

/// Each step, or pass at an executor, takes and frees the same tens of MB. glibc would give them back to the
/// system and page-fault them in again, some 2,500 times in each step of mnist_cnn; so it keeps up to 1 GiB,
/// in arrays of up to 32 MiB each. Whether it could.
inline bool keepFreedMemory() {
  constexpr int kLargestBytes = 32 << 20;  // the most that glibc allows
  constexpr int kKeptBytes = 1 << 30;
  return mallopt(M_MMAP_THRESHOLD, kLargestBytes) != 0 && mallopt(M_TRIM_THRESHOLD, kKeptBytes) != 0;
}

}  // namespace psd
