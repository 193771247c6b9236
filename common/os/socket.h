#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "common/os/address.h"
#include "common/status/status.h"

namespace psd {

/// Owns a file descriptor. Movable; owned by one thread at a time.
class OwnFd {
 public:
  OwnFd() = default;
  explicit OwnFd(int fd) : fd_(fd) {}
  OwnFd(OwnFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OwnFd& operator=(OwnFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~OwnFd();

  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

/// Which file a path led to, whatever lies there later. A value type.
struct FileIdentity {
  dev_t device = 0;
  ino_t inode = 0;
  bool operator==(const FileIdentity&) const = default;
};

/// The sockets behind one address, non-blocking: a name such as "localhost" may stand for several. A Unix
/// socket's file is removed with it, unless another one lies at its path by then. Owned by one thread.
class ListenSockets {
 public:
  ListenSockets() = default;
  ListenSockets(ListenSockets&&) noexcept = default;
  ListenSockets& operator=(ListenSockets&& other) noexcept {
    std::swap(address_, other.address_);
    std::swap(sockets_, other.sockets_);
    std::swap(file_, other.file_);
    return *this;
  }
  ~ListenSockets();

  /// The address, with the port that was chosen.
  const Address& address() const { return address_; }
  const std::vector<OwnFd>& sockets() const { return sockets_; }

 private:
  friend Result<ListenSockets> listenOn(const Address& address);
  Address address_;
  std::vector<OwnFd> sockets_;
  std::optional<FileIdentity> file_;  ///< of a Unix socket; no other gets it while the socket is open
};

/// Binds and listens. Errors name the address and say when it is in use. A Unix socket that nobody
/// listens on any more is replaced. Resolves names: may block.
Result<ListenSockets> listenOn(const Address& address);

/// An accepted connection.
struct AcceptedSocket {
  OwnFd fd;                     ///< non-blocking; empty when nobody waits
  std::string peer;             ///< for people
  std::optional<uid_t> user{};  ///< whose process it is; known of a Unix socket's peer
};

/// Accepts one connection and sets it up for the data path; never blocks. An error is the system's reason
/// (out of descriptors, …); the caller tries again later.
Result<AcceptedSocket> acceptFrom(int listening);

/// Has the system end a connection whose peer's machine is out of reach, after about so long a silence. Of a
/// Unix socket's peer it knows at once.
void endWhenVanished(int fd, std::chrono::milliseconds silence);
/// Whether the peer has closed its side, or the connection has failed, though there may be bytes to read.
bool hasHungUp(int fd);
/// Bytes that the system has received and nobody has read yet.
uint64_t bytesToRead(int fd);

/// Connects, trying each address a name stands for, of which each has its share of `timeout`. Non-blocking
/// socket on success. ErrorCode::unavailable when nobody listens, deadlineExceeded after `timeout`. Blocks,
/// and resolving a name may take longer than that. `refused`, where not null: whether the machine of the
/// address has said that nobody listens there.
Result<OwnFd> connectTo(const Address& address, std::chrono::milliseconds timeout, bool* refused = nullptr);

}  // namespace psd
