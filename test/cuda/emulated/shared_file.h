#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "common/os/socket.h"

namespace psd::emulated {

/// Memory that several processes can map: a file without a path, found among the descriptors of the process
/// that created it. It has a random name there, so that a handle identifies this file and never a later one
/// with the same numbers. Exists as long as a process has it mapped.
class SharedFile {
 public:
  /// Used by another process to open it. The contents of a cudaIpcMemHandle_t.
  struct Handle {
    int32_t process;
    int32_t descriptor;
    std::array<uint64_t, 7> name;

    bool operator==(const Handle&) const = default;
  };

  /// None if the system creates no such file.
  static std::optional<SharedFile> make(size_t bytes);
  /// Accepts any bytes. None if the handle identifies no file, or one that its creator has closed.
  static std::optional<SharedFile> open(const Handle& handle);

  const Handle& handle() const { return handle_; }
  size_t bytes() const { return bytes_; }
  /// Maps the whole file over the pages at `address`, which are inaccessible until protected otherwise.
  bool mapAt(void* address) const;

 private:
  SharedFile(OwnFd fd, const Handle& handle, size_t bytes)
      : fd_(std::move(fd)), handle_(handle), bytes_(bytes) {}

  OwnFd fd_;
  Handle handle_;
  size_t bytes_;
};

}  // namespace psd::emulated
