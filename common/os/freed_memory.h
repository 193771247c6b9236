#pragma once

#include <malloc.h>

namespace psd {

/// Each step, or pass at an executor, takes and frees the same tens of MB. glibc would give them back to the
/// system and page-fault them in again, which costs a tenth of the time of a step; so it keeps them.
inline void keepFreedMemory() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // bytes; the most that glibc allows
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

}  // namespace psd
