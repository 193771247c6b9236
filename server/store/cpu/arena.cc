#include "server/store/cpu/arena.h"

#include <cerrno>
#include <cstring>

#include <sys/mman.h>

#include "common/os/huge_pages.h"
#include "server/store/arena_plan.h"
#include "server/store/shard_storage.h"

namespace psd {
namespace {

constexpr uint64_t kPastEndBytes = 64;  // readable past the end: a cache line; 7 bytes would suffice

}  // namespace

Result<std::shared_ptr<Arena>> Arena::map(uint64_t floats) {
  const uint64_t wanted = floats * sizeof(float) + kPastEndBytes;
  const uint64_t bytes = (wanted + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  std::byte* const data = mapAtHugePage(bytes);
  if (data == nullptr) return notEnoughMemory("cpu", bytes, std::strerror(errno));
  if (wanted >= kHugePageBytes) preferHugePages(data, bytes);  // a small model does not need a whole page
  return std::shared_ptr<Arena>(new Arena(reinterpret_cast<float*>(data), bytes, nullptr, 0, 0));
}

Result<std::shared_ptr<Arena>> Arena::share(uint64_t floats, uint64_t versions) {
  const uint64_t used = floats * sizeof(float) + kPastEndBytes;
  const uint64_t versionsAt = (used + kVersionStepBytes - 1) / kVersionStepBytes * kVersionStepBytes;
  const uint64_t readableAt = versionsAt + versions * kVersionStepBytes;
  const uint64_t bytes = readableAt + kVersionStepBytes;
  PSD_ASSIGN_OR_RETURN(auto file, SharedMemory::create("psd-parameters", bytes, SharedAccess::readOnly));
  auto* const data = reinterpret_cast<float*>(file->data());
  sharedWord(*file, readableAt).store(1, std::memory_order_release);
  return std::shared_ptr<Arena>(new Arena(data, bytes, std::move(file), versionsAt, readableAt));
}

Arena::~Arena() {
  if (!file_) munmap(data_, bytes_);
}

}  // namespace psd
