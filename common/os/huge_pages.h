#pragma once

#include <cstddef>
#include <cstdint>

namespace psd {

inline constexpr uint64_t kHugePageBytes = 2 << 20;

/// Fresh private memory of `bytes`, a multiple of kHugePageBytes, that begins at such a multiple: only there
/// the system can give huge pages. Zeroed; to be given back with munmap(). Null where there is none, with
/// errno saying why. `flags`: of mmap(), besides those that this takes.
std::byte* mapAtHugePage(uint64_t bytes, int flags = 0);

/// Asks for huge pages for memory that nobody has touched yet: transfers into it, and work on it, look up
/// fewer pages. A hint: without them it is slower, not wrong. What is no whole huge page stays as it is.
void preferHugePages(void* data, uint64_t bytes);

}  // namespace psd
