#include "test/cuda/emulated/memory.h"

#include <cstdint>
#include <cstring>
#include <utility>

#include <sys/mman.h>

#include "test/cuda/emulated/fail.h"

namespace psd::emulated {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kAlignment = 256;  // of allocations by cudaMalloc()
constexpr int kPattern = 0xa5;

size_t roundUp(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

/// Reserves address space without access. The part after the first page starts at a block, so that the system
/// can use huge pages, whose protection changes far faster.
std::byte* reserve(size_t bytes) {
  const size_t more = bytes + Memory::kBlockBytes;
  void* const pages = mmap(nullptr, more, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(pages);
  const size_t before = roundUp(reinterpret_cast<uintptr_t>(begin) + kPageBytes, Memory::kBlockBytes) -
                        kPageBytes - reinterpret_cast<uintptr_t>(begin);
  if (before > 0) munmap(begin, before);
  munmap(begin + before + bytes, more - before - bytes);
  madvise(begin + before, bytes, MADV_HUGEPAGE);
  return begin + before;
}

}  // namespace

Memory::~Memory() {
  for (const auto& [memory, allocation] : allocations_) munmap(allocation.mapped, allocation.mappedBytes);
}

void* Memory::allocate(size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes > bytesMax_ - usedBytes_) return nullptr;
  return map(bytes, std::nullopt, true);
}

void* Memory::open(const SharedFile::Handle& handle) {
  const std::lock_guard lock(mutex_);
  for (auto& [memory, allocation] : allocations_) {
    if (allocation.file->handle() != handle) continue;
    ++allocation.users;
    return allocation.mapped + kPageBytes;
  }
  auto file = SharedFile::open(handle);
  if (!file) return nullptr;
  const size_t bytes = file->bytes();
  return map(bytes, std::move(file), false);
}

void* Memory::map(size_t bytes, std::optional<SharedFile> file, bool fresh) {
  const size_t usable = roundUp(bytes, kAlignment);
  const size_t inside = roundUp(usable, kPageBytes);
  const size_t mapped = kPageBytes + inside + kPageBytes;  // the first and the last page: never accessible
  std::byte* const pages = reserve(mapped);
  if (pages == nullptr) return nullptr;
  Allocation allocation{pages, mapped, bytes, std::move(file), 1};
  if (allocation.file && !allocation.file->mapAt(allocation.mapped + kPageBytes)) {
    munmap(pages, mapped);
    return nullptr;
  }
  std::byte* const memory = allocation.mapped + kPageBytes + inside - usable;
  if (fresh) {
    protect(allocation, true);
    std::memset(memory, kPattern, usable);
  }
  protect(allocation, use_ == Use::always || atWork_ > 0);
  allocations_.emplace(memory, std::move(allocation));
  usedBytes_ += bytes;
  return memory;
}

bool Memory::release(void* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(static_cast<std::byte*>(memory));
  if (found == allocations_.end()) return false;
  Allocation& allocation = found->second;
  if (--allocation.users > 0) return true;
  munmap(allocation.mapped, allocation.mappedBytes);
  usedBytes_ -= allocation.bytes;
  allocations_.erase(found);
  return true;
}

std::optional<SharedFile::Handle> Memory::handleOf(const void* memory) {
  std::unique_lock lock(mutex_);
  const auto find = [&] { return allocations_.find(static_cast<const std::byte*>(memory)); };
  auto found = find();
  if (found == allocations_.end()) return std::nullopt;
  if (found->second.bytes % kBlockBytes != 0) {
    fail("a handle of memory that is no multiple of 2 MiB: a device would hand out its neighbours too");
  }
  if (!found->second.file) {
    rests_.wait(lock, [this] { return atWork_ == 0; });
    found = find();
    if (found == allocations_.end()) return std::nullopt;
    share(found->second);
  }
  const auto& file = found->second.file;
  return file ? std::optional(file->handle()) : std::nullopt;
}

void Memory::share(Allocation& allocation) const {
  auto file = SharedFile::make(allocation.bytes);
  if (!file) return;
  std::byte* const memory = allocation.mapped + kPageBytes;
  std::byte* const copy = reserve(allocation.bytes);
  if (copy == nullptr) return;
  if (file->mapAt(copy)) {
    protect(allocation, true);
    if (mprotect(copy, allocation.bytes, PROT_WRITE) != 0) fail("mprotect");
    std::memcpy(copy, memory, allocation.bytes);
    if (!file->mapAt(memory)) fail("no memory to share in the place of what there was");
    allocation.file = std::move(file);
  }
  munmap(copy, allocation.bytes);
}

size_t Memory::freeBytes() const {
  const std::lock_guard lock(mutex_);
  return bytesMax_ - usedBytes_;
}

void Memory::leaveFree(size_t bytes) {
  const std::lock_guard lock(mutex_);
  usedBytes_ = bytesMax_ - bytes;
}

bool Memory::holds(const void* memory, size_t bytes) const {
  const std::lock_guard lock(mutex_);
  const auto* const begin = static_cast<const std::byte*>(memory);
  auto after = allocations_.upper_bound(begin);
  if (after == allocations_.begin()) return false;
  const auto& [start, allocation] = *--after;
  return begin + bytes <= start + allocation.bytes;
}

bool Memory::touches(const void* memory, size_t bytes) const {
  const std::lock_guard lock(mutex_);
  const auto* const begin = static_cast<const std::byte*>(memory);
  auto after = allocations_.lower_bound(begin + bytes);
  if (after == allocations_.begin()) return false;
  const auto& [start, allocation] = *--after;
  return begin < start + allocation.bytes;
}

void Memory::beginWork() {
  const std::lock_guard lock(mutex_);
  if (atWork_++ > 0) return;
  for (const auto& [memory, allocation] : allocations_) protect(allocation, true);
}

void Memory::endWork() {
  const std::lock_guard lock(mutex_);
  if (--atWork_ > 0) return;
  for (const auto& [memory, allocation] : allocations_) protect(allocation, false);
  rests_.notify_all();
}

void Memory::protect(const Allocation& allocation, bool usable) const {
  const int protection = usable ? PROT_READ | PROT_WRITE : PROT_NONE;
  const size_t inside = allocation.mappedBytes - 2 * kPageBytes;
  if (inside > 0 && mprotect(allocation.mapped + kPageBytes, inside, protection) != 0) fail("mprotect");
}

}  // namespace psd::emulated
