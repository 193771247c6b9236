#pragma once

#include <cstdint>
#include <memory>

#include "common/os/shared_memory.h"
#include "common/status/status.h"

namespace psd {

/// One run of zeroed floats, in anonymous memory on huge pages where the system gives them, or in a
/// memory file that other processes can map. Pages are taken when first touched. At least 7 bytes past the
/// end are readable, as messages that reference the memory in place need. The memory itself has no owner
/// thread; the object is immutable.
class Arena {
 public:
  /// Maps anonymous memory. ErrorCode::overloaded, naming the bytes, when the system refuses. At most 2^60
  /// floats.
  static Result<std::shared_ptr<Arena>> map(uint64_t floats);
  /// Maps a memory file, with `versions` zeroed words after the floats and one word of 1 after these. Fails
  /// as map() does.
  static Result<std::shared_ptr<Arena>> share(uint64_t floats, uint64_t versions, SharedAccess others);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  float* data() const { return data_; }
  /// The memory file; null when the memory is anonymous.
  const std::shared_ptr<SharedMemory>& file() const { return file_; }
  /// Byte of the file at which a version's word lies, each in a cache line of its own.
  uint64_t versionAt(uint64_t index) const { return versionsAt_ + index * kVersionStepBytes; }
  /// Byte of the file at which the word after the versions lies, which is 1 at first.
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
