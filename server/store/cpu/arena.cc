#include "server/store/cpu/arena.h"

#include <cerrno>
#include <cstring>

#include <sys/mman.h>

#include "server/store/arena_plan.h"
#include "server/store/shard_storage.h"

namespace psd {
namespace {

constexpr uint64_t kHugePageBytes = 2 * 1024 * 1024;
constexpr uint64_t kPastEndBytes = 64;  // readable past the end; a cache line, 7 would do

}  // namespace

Result<std::shared_ptr<Arena>> Arena::map(uint64_t floats) {
  const uint64_t wanted = floats * sizeof(float) + kPastEndBytes;
  const uint64_t bytes = (wanted + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  // One huge page more than needed, so that the part that begins at a huge page can be cut out.
  const uint64_t reserved = bytes + kHugePageBytes;
  void* const mapping = mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return notEnoughMemory("cpu", bytes, std::strerror(errno));
  char* const begin = static_cast<char*>(mapping);
  const uint64_t before = -reinterpret_cast<uintptr_t>(begin) % kHugePageBytes;
  if (before > 0) munmap(begin, before);
  if (before < kHugePageBytes) munmap(begin + before + bytes, kHugePageBytes - before);
  // A small model does not need a whole huge page. Without huge pages it is slower, not wrong.
  if (wanted >= kHugePageBytes) madvise(begin + before, bytes, MADV_HUGEPAGE);
  auto* const floatsBegin = reinterpret_cast<float*>(begin + before);
  return std::shared_ptr<Arena>(new Arena(floatsBegin, bytes, nullptr, 0, 0));
}

Result<std::shared_ptr<Arena>> Arena::share(uint64_t floats, uint64_t versions, SharedAccess others) {
  const uint64_t used = floats * sizeof(float) + kPastEndBytes;
  const uint64_t versionsAt = (used + kVersionStepBytes - 1) / kVersionStepBytes * kVersionStepBytes;
  const uint64_t readableAt = versionsAt + versions * kVersionStepBytes;
  const uint64_t bytes = readableAt + kVersionStepBytes;
  PSD_ASSIGN_OR_RETURN(auto file, SharedMemory::create("psd-parameters", bytes, others));
  auto* const data = reinterpret_cast<float*>(file->data());
  sharedWord(*file, readableAt).store(1, std::memory_order_release);
  return std::shared_ptr<Arena>(new Arena(data, bytes, std::move(file), versionsAt, readableAt));
}

Arena::~Arena() {
  if (!file_) munmap(data_, bytes_);
}

}  // namespace psd
