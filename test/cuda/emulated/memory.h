#pragma once

#include <condition_variable>
#include <cstddef>
#include <map>
#include <mutex>
#include <optional>

#include "test/cuda/emulated/shared_file.h"

namespace psd::emulated {

/// Memory of one kind: a device's, pinned, or that of other processes' devices. Filled with a pattern, never
/// zeroed. The byte after an allocation, rounded up to 256, is inaccessible, and so is freed memory: any
/// access gets a SIGSEGV. A device's memory is accessible only while the device works, so that a host access
/// gets a SIGSEGV. Thread-safe.
class Memory {
 public:
  enum class Use { always, atWork };

  /// The granularity of a device's memory: an allocation of whole blocks shares none with another one, and
  /// can be opened by other processes.
  static constexpr size_t kBlockBytes = size_t{2} << 20;

  Memory(Use use, size_t bytesMax) : use_(use), bytesMax_(bytesMax) {}
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  /// Null if the memory is exhausted.
  void* allocate(size_t bytes);
  /// The memory of a handle from any process: the same address for the same handle until it has been released
  /// as often as it was opened. It outlives its creator. Null if the handle is invalid.
  void* open(const SharedFile::Handle& handle);
  /// Whether `memory` was returned by allocate() or open().
  bool release(void* memory);
  size_t freeBytes() const;
  /// From now on at most this many bytes are free; other programs use the rest.
  void leaveFree(size_t bytes);

  /// A handle for other processes; none if allocate() did not return `memory`. An allocation that is not in
  /// whole blocks ends the program. The first handle of an allocation waits until the device is idle.
  std::optional<SharedFile::Handle> handleOf(const void* memory);

  /// Whether these bytes are in one allocation; and whether any of them is in some.
  bool holds(const void* memory, size_t bytes) const;
  bool touches(const void* memory, size_t bytes) const;

  /// A stream starts and ends using it.
  void beginWork();
  void endWork();

  /// Both, for its lifetime.
  class Work {
   public:
    explicit Work(Memory& memory) : memory_(memory) { memory_.beginWork(); }
    ~Work() { memory_.endWork(); }
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;

   private:
    Memory& memory_;
  };

 private:
  struct Allocation {
    std::byte* mapped;
    size_t mappedBytes, bytes;
    std::optional<SharedFile> file;  // if other processes have a handle, or it was opened
    int users;                       // above 1: opened that often
  };

  /// Maps the file, or private memory; null if the system refuses.
  void* map(size_t bytes, std::optional<SharedFile> file, bool fresh);
  /// Replaces the memory by a file with the same bytes; no effect if the system creates none.
  void share(Allocation& allocation) const;
  void protect(const Allocation& allocation, bool usable) const;

  const Use use_;
  const size_t bytesMax_;
  mutable std::mutex mutex_;
  std::condition_variable rests_;
  std::map<const std::byte*, Allocation> allocations_;  // by address
  size_t usedBytes_ = 0;
  int atWork_ = 0;
};

}  // namespace psd::emulated
