#pragma once

#include <cstddef>
#include <cstdint>

namespace psd {

inline constexpr uint64_t kHugePageBytes = 2 << 20;

/// Maps fresh private memory of `bytes`, a multiple of kHugePageBytes, aligned to such a multiple, which huge
/// pages require. Zeroed; release it with munmap(). Null with errno set on failure. `flags`: additional flags
/// of mmap().
std::byte* mapAtHugePage(uint64_t bytes, int flags = 0);

/// Requests huge pages for untouched memory, so that transfers and computations need fewer TLB entries. A
/// hint: without huge pages it is slower, not wrong. Only whole huge pages are affected.
void preferHugePages(void* data, uint64_t bytes);

}  // namespace psd
