#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>

namespace psd::emulated {

/// Memory of one kind, a device's or pinned. Filled with a pattern, never zeroed; the byte behind an
/// allocation, rounded up to 256, is no memory, nor is what was freed: who uses it gets a SIGSEGV. A device's
/// is memory while the device is at work alone, so that the host gets a SIGSEGV that takes it for its own.
/// Thread-safe.
class Memory {
 public:
  enum class Use { always, atWork };

  Memory(Use use, size_t bytesMax) : use_(use), bytesMax_(bytesMax) {}
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  /// Null when there is no room.
  void* allocate(size_t bytes);
  /// Whether `memory` was what allocate() gave.
  bool release(void* memory);
  size_t freeBytes() const;

  /// Whether these bytes lie in one allocation; and whether any of them lies in some.
  bool holds(const void* memory, size_t bytes) const;
  bool touches(const void* memory, size_t bytes) const;

  /// A stream has something to do, and has nothing more to do.
  void beginWork();
  void endWork();

 private:
  struct Allocation {
    std::byte* mapped;
    size_t mappedBytes, bytes;
  };

  void protect(const Allocation& allocation, bool usable) const;

  const Use use_;
  const size_t bytesMax_;
  mutable std::mutex mutex_;
  std::map<const std::byte*, Allocation> allocations_;  // by address
  size_t usedBytes_ = 0;
  int atWork_ = 0;
};

}  // namespace psd::emulated
