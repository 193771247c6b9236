#pragma once

#include <functional>
#include <span>

#include <sys/types.h>

namespace psd::bench {

enum class StreamKind { unixSocket, tcp };

/// A forked process and a connected stream to it. The process runs `serve(fd)` and exits; the destructor
/// closes the stream and waits for that. Both sockets are blocking. Construct it before any thread exists.
/// Owned by one thread.
class PeerProcess {
 public:
  /// `bufferBytes`: buffers of both sockets, in both directions; 0 keeps the system's. Throws
  /// std::system_error.
  PeerProcess(StreamKind kind, int bufferBytes, const std::function<void(int)>& serve);
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  int fd() const { return fd_; }
  /// Releases the socket to the caller.
  int release();

 private:
  int fd_ = -1;
  pid_t pid_ = -1;
};

/// Sends everything. Throws std::system_error.
void sendAll(int fd, std::span<const char> bytes);
/// Receives exactly that many bytes; false at the end of the stream. Throws std::system_error.
bool receiveAll(int fd, std::span<char> bytes);

template <class T>
void sendValue(int fd, const T& value) {
  sendAll(fd, {reinterpret_cast<const char*>(&value), sizeof value});
}
template <class T>
bool receiveValue(int fd, T& value) {
  return receiveAll(fd, {reinterpret_cast<char*>(&value), sizeof value});
}

}  // namespace psd::bench
