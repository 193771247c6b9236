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

/// The identity of a file, independent of what is at its path later. A value type.
struct FileIdentity {
  dev_t device = 0;
  ino_t inode = 0;
  bool operator==(const FileIdentity&) const = default;
};

/// The non-blocking listening sockets of one address: a name such as "localhost" may resolve to several. A
/// Unix socket's file is removed on destruction, unless another file has replaced it. Owned by one thread.
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

  /// The address, with the port that was assigned.
  const Address& address() const { return address_; }
  const std::vector<OwnFd>& sockets() const { return sockets_; }

 private:
  friend Result<ListenSockets> listenOn(const Address& address);
  Address address_;
  std::vector<OwnFd> sockets_;
  std::optional<FileIdentity> file_;  ///< of a Unix socket; not reused while the socket is open
};

/// Binds and listens. Errors name the address and say when it is in use. A stale Unix socket is replaced.
/// Resolves names: may block.
Result<ListenSockets> listenOn(const Address& address);

/// An accepted connection.
struct AcceptedSocket {
  OwnFd fd;                     ///< non-blocking; empty if no connection is pending
  std::string peer;             ///< human-readable
  std::optional<uid_t> user{};  ///< owner of the peer process; for Unix sockets only
};

/// Accepts one connection and configures it for the data path; never blocks. An error has the system's reason
/// (out of descriptors, …); the caller retries later.
Result<AcceptedSocket> acceptFrom(int listening);

/// Makes the system end a connection whose peer machine has been unreachable for about `silence`. The end of
/// a Unix socket's peer is noticed at once.
void enableKeepAlive(int fd, std::chrono::milliseconds silence);
/// Whether the peer has closed its side, or the connection has failed, even if unread bytes remain.
bool hasDisconnected(int fd);
/// Received bytes that have not been read.
uint64_t unreadBytes(int fd);

/// Connects, trying each resolved address with its share of `timeout`. Returns a non-blocking socket.
/// ErrorCode::unavailable if nothing listens, deadlineExceeded after `timeout`. Blocks; name resolution may
/// exceed the timeout. `refused`, if not null, is set to whether the target machine refused the connection.
Result<OwnFd> connectTo(const Address& address, std::chrono::milliseconds timeout, bool* refused = nullptr);

}  // namespace psd
