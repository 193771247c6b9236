#pragma once

#include <condition_variable>
#include <cstddef>
#include <map>
#include <mutex>
#include <optional>

#include "test/cuda/emulated/shared_file.h"

namespace psd::emulated {

/// Memory of one kind: a device's, pinned, or that of other processes' devices. Filled with a pattern, never
/// zeroed; the byte behind an allocation, rounded up to 256, is no memory, nor is what was freed: who uses it
/// gets a SIGSEGV. A device's is memory while the device is at work alone, so that the host gets a SIGSEGV
/// that takes it for its own. Thread-safe.
class Memory {
 public:
  enum class Use { always, atWork };

  /// What a device's memory is cut from: an allocation of whole blocks shares none with another one, and is
  /// what other processes can open.
  static constexpr size_t kBlockBytes = size_t{2} << 20;

  Memory(Use use, size_t bytesMax) : use_(use), bytesMax_(bytesMax) {}
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  /// Null when there is no room.
  void* allocate(size_t bytes);
  /// The memory behind a handle, of whichever process: the same for the same handle until it has been
  /// released as often as it was opened. It outlives its maker. Null where the handle is good for nothing.
  void* open(const SharedFile::Handle& handle);
  /// Whether `memory` was what allocate() or open() gave.
  bool release(void* memory);
  size_t freeBytes() const;
  /// From now on no more than so many bytes are free: others have the rest.
  void leaveFree(size_t bytes);

  /// For other processes; none where allocate() did not give `memory`. One of not just whole blocks ends the
  /// program. The first handle of an allocation waits until the device has nothing to do.
  std::optional<SharedFile::Handle> handleOf(const void* memory);

  /// Whether these bytes lie in one allocation; and whether any of them lies in some.
  bool holds(const void* memory, size_t bytes) const;
  bool touches(const void* memory, size_t bytes) const;

  /// A stream has something to do with it, and has nothing more to do.
  void beginWork();
  void endWork();

  /// Both of these, for as long as it lives.
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
    std::optional<SharedFile> file;  // of what others have a handle of, or gave one of
    int users;                       // above 1: opened as often
  };

  /// Memory over the file, or of its own; null when the system refuses.
  void* map(size_t bytes, std::optional<SharedFile> file, bool fresh);
  /// Puts a file in the place of what is there, with the same bytes; nothing where the system gives none.
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
