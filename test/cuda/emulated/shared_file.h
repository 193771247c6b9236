#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "common/os/socket.h"

namespace psd::emulated {

/// Memory that several processes can map: a file without a path, which others find among the descriptors of
/// the process that made it. There it has a name drawn by chance, so that a handle stands for this file and
/// for none that has its numbers later. Lives as long as some process has it mapped.
class SharedFile {
 public:
  /// What another process opens it by. The contents of a cudaIpcMemHandle_t.
  struct Handle {
    int32_t process;
    int32_t descriptor;
    std::array<uint64_t, 7> name;

    bool operator==(const Handle&) const = default;
  };

  /// None when the system gives no such file.
  static std::optional<SharedFile> make(size_t bytes);
  /// Whatever the handle's bytes are. None when it stands for no file, or for one that its maker has closed.
  static std::optional<SharedFile> open(const Handle& handle);

  const Handle& handle() const { return handle_; }
  size_t bytes() const { return bytes_; }
  /// Maps it whole in place of the pages at `address`, of no use until they are protected otherwise.
  bool mapAt(void* address) const;

 private:
  SharedFile(OwnFd fd, const Handle& handle, size_t bytes)
      : fd_(std::move(fd)), handle_(handle), bytes_(bytes) {}

  OwnFd fd_;
  Handle handle_;
  size_t bytes_;
};

}  // namespace psd::emulated
