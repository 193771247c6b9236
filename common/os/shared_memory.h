#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/os/socket.h"
#include "common/status/status.h"

namespace psd {

/// What may be done through a descriptor of shared memory, besides reading.
enum class SharedAccess { readOnly, readWrite };

/// A memory file (memfd) that is mapped whole. It can be neither shortened nor grown, so that nothing which
/// another process does to it makes an access here fail. Made by one process with create(), given to
/// another as a descriptor, opened there with open(). The memory has no owner thread; the object is
/// immutable.
class SharedMemory {
 public:
  /// Zeroed memory, writable here. With `others` readOnly the system refuses everybody who holds the
  /// descriptor a writable map. ErrorCode::overloaded when the system gives no such memory.
  static Result<std::shared_ptr<SharedMemory>> create(const char* name, uint64_t bytes, SharedAccess others);

  /// Maps a file that somebody else made; the descriptor stays the caller's. The pages of its first
  /// `residentBytes` are taken at once, if these are 64 MiB or less. ErrorCode::protocolMismatch when it is
  /// shorter than `bytes` or could become so.
  static Result<std::shared_ptr<SharedMemory>> open(int fd, uint64_t bytes, SharedAccess access,
                                                    uint64_t residentBytes = UINT64_MAX);

  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  /// The descriptor of the file, to be given away; -1 in memory that came from open().
  int fd() const { return fd_.get(); }

 private:
  SharedMemory(OwnFd fd, std::byte* data, uint64_t bytes);

  OwnFd fd_;
  std::byte* data_;
  uint64_t bytes_;
};

/// Whether descriptors can be passed over this socket: whether it is a Unix one.
bool canPassDescriptors(int socket);

}  // namespace psd
