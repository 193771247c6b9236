#include "server/store/rows/mapped_block.h"

#include <algorithm>

#include <sys/mman.h>

#include "common/os/huge_pages.h"

namespace psd {
namespace {

constexpr uint64_t kSmallPageBytes = 4096;

}  // namespace

std::optional<MappedBlock> MappedBlock::map(uint64_t bytes, Pages pages) {
  const uint64_t whole = (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  std::byte* const data = mapAtHugePage(whole, MAP_NORESERVE);
  if (data == nullptr) return std::nullopt;
  const uint64_t small = pages == Pages::smallAtFirst ? kHugePageBytes : 0;
  preferHugePages(data + small, whole - small);
  return MappedBlock(data, whole);
}

MappedBlock::~MappedBlock() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

void MappedBlock::touch(uint64_t bytes) {
  bytes = std::min(bytes, bytes_);
#ifdef MADV_POPULATE_WRITE
  if (madvise(data_, bytes, MADV_POPULATE_WRITE) == 0) return;
#endif
  // Rewrites the existing value: a page that is only read would remain the system's shared zero page.
  for (uint64_t at = 0; at < bytes; at += kSmallPageBytes) {
    volatile std::byte& byte = data_[at];
    byte = byte;
  }
}

}  // namespace psd
