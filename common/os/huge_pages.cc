#include "common/os/huge_pages.h"

#include <sys/mman.h>

namespace psd {

std::byte* mapAtHugePage(uint64_t bytes, int flags) {
  // One extra huge page, so that an aligned part can be cut out.
  void* const mapping = mmap(nullptr, bytes + kHugePageBytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(mapping);
  const uint64_t before = -reinterpret_cast<uintptr_t>(begin) % kHugePageBytes;
  if (before > 0) munmap(begin, before);
  munmap(begin + before + bytes, kHugePageBytes - before);
  return begin + before;
}

void preferHugePages(void* data, uint64_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  const uint64_t before = -begin % kHugePageBytes;
  if (bytes < before + kHugePageBytes) return;
  const uint64_t whole = (bytes - before) / kHugePageBytes * kHugePageBytes;
  madvise(static_cast<std::byte*>(data) + before, whole, MADV_HUGEPAGE);
}

}  // namespace psd
