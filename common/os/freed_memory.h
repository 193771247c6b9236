#pragma once

#include <malloc.h>

namespace psd {

/// Makes glibc keep freed memory: up to 1 GiB, in arrays of up to 32 MiB each. Each step, or pass at an
/// executor, allocates and frees the same tens of MB, which glibc would otherwise return to the system and
/// page-fault in again, about 2,500 times per step of mnist_cnn. Returns whether it succeeded.
inline bool keepFreedMemory() {
  constexpr int kLargestBytes = 32 << 20;  // glibc's maximum
  constexpr int kKeptBytes = 1 << 30;
  return mallopt(M_MMAP_THRESHOLD, kLargestBytes) != 0 && mallopt(M_TRIM_THRESHOLD, kKeptBytes) != 0;
}

}  // namespace psd
