#pragma once

#include <cstdint>
#include <memory>

#include "common/os/shared_memory.h"
#include "common/status/status.h"

namespace psd {

/// A contiguous array of zeroed floats, in anonymous memory on huge pages where the system provides them, or
/// in a memory file that other processes can map. Pages are allocated on first touch. At least 7 bytes past
/// the end are readable, as required by messages that reference the memory in place. The object is immutable;
/// access to the memory is not synchronized.
class Arena {
 public:
  /// Maps anonymous memory. ErrorCode::overloaded, naming the bytes, if the system refuses. At most 2^60
  /// floats.
  static Result<std::shared_ptr<Arena>> map(uint64_t floats);
  /// Maps a memory file that other processes can only read: the floats, then `versions` zeroed words, then
  /// one word of value 1. Fails like map().
  static Result<std::shared_ptr<Arena>> share(uint64_t floats, uint64_t versions);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  float* data() const { return data_; }
  /// The memory file; null when the memory is anonymous.
  const std::shared_ptr<SharedMemory>& file() const { return file_; }
  /// Byte offset in the file of a version word; each word has its own cache line.
  uint64_t versionAt(uint64_t index) const { return versionsAt_ + index * kVersionStepBytes; }
  /// Byte offset in the file of the word after the versions, which is initially 1.
  uint64_t readableAt() const { return readableAt_; }

 private:
  static constexpr uint64_t kVersionStepBytes = 64;

  Arena(float* data, uint64_t bytes, std::shared_ptr<SharedMemory> file, uint64_t versionsAt,
        uint64_t readableAt)
      : data_(data),
        bytes_(bytes),
        file_(std::move(file)),
        versionsAt_(versionsAt),
        readableAt_(readableAt) {}

  float* data_;
  uint64_t bytes_;
  std::shared_ptr<SharedMemory> file_;
  uint64_t versionsAt_, readableAt_;
};

}  // namespace psd
