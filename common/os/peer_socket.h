#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <netdb.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/types.h>

namespace psd {

/// A peer's address, human-readable: "127.0.0.1:53211".
inline std::string peerText(const sockaddr_storage& name, socklen_t length) {
  if (name.ss_family == AF_UNIX) return "a local process";
  const auto* const generic = reinterpret_cast<const sockaddr*>(&name);
  char host[NI_MAXHOST], port[NI_MAXSERV];
  constexpr int kNumeric = NI_NUMERICHOST | NI_NUMERICSERV;
  if (getnameinfo(generic, length, host, sizeof host, port, sizeof port, kNumeric) != 0) {
    return "an unknown peer";
  }
  return std::string(host) + ":" + port;
}

/// peerText() of a connected socket's peer.
inline std::string peerOf(int fd) {
  sockaddr_storage name{};
  socklen_t length = sizeof name;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&name), &length) != 0) return "an unknown peer";
  return peerText(name, length);
}

/// The user of the peer process of a Unix socket; empty for other sockets.
inline std::optional<uid_t> userOf(int fd) {
  int family = 0;
  socklen_t length = sizeof family;
  if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &length) != 0 || family != AF_UNIX) return {};
  ucred peer{};
  length = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return {};
  return peer.uid;
}

/// Bytes written to a socket and not acknowledged by the peer's system.
inline uint64_t unacknowledgedBytes(int fd) {
  int bytes = 0;
  return ioctl(fd, TIOCOUTQ, &bytes) == 0 && bytes > 0 ? static_cast<uint64_t>(bytes) : 0;
}

}  // namespace psd
