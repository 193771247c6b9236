#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/os/socket.h"
#include "common/status/status.h"

namespace psd {

/// Access that other holders of the descriptor have.
enum class SharedAccess { readOnly, readWrite };

/// A memory file (memfd), mapped completely. Its size is sealed, so that no other process can make an access
/// here fail. Made by one process with create(), passed to another as a descriptor, and opened there with
/// open(). The memory has no owner thread; the object is immutable.
class SharedMemory {
 public:
  /// Zeroed memory, writable here. With `others` readOnly the system refuses a writable map to every holder
  /// of the descriptor. ErrorCode::overloaded if the system has no such memory.
  static Result<std::shared_ptr<SharedMemory>> create(const char* name, uint64_t bytes, SharedAccess others);

  /// Maps a file created by another process; the caller keeps the descriptor. The pages of its first
  /// `residentBytes` are populated at once, if these are 64 MiB or less. ErrorCode::protocolMismatch if the
  /// file is shorter than `bytes` or could shrink.
  static Result<std::shared_ptr<SharedMemory>> open(int fd, uint64_t bytes, SharedAccess access,
                                                    uint64_t residentBytes = UINT64_MAX);

  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  /// The file's descriptor, for passing on; -1 after open().
  int fd() const { return fd_.get(); }

 private:
  SharedMemory(OwnFd fd, std::byte* data, uint64_t bytes);

  OwnFd fd_;
  std::byte* data_;
  uint64_t bytes_;
};

/// Whether descriptors can be passed over this socket, which must be a Unix socket.
bool canPassDescriptors(int socket);

}  // namespace psd
