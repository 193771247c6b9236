#include "common/os/socket.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/os/peer_socket.h"

namespace psd {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr int kBacklog = 1024;
constexpr int kUnixBufferBytes = 1 << 20;  // TCP's are left to the kernel's autotuning
constexpr int kPortTries = 16;

using AddrInfo = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Error socketError(ErrorCode code, const Address& address, const std::string& what, int error) {
  return {code, address.toString() + ": " + what + ": " + std::strerror(error)};
}

Error cannotListen(const Address& address, int error) {
  Error failed = socketError(ErrorCode::io, address, "cannot listen", error);
  if (error != EADDRINUSE) return failed;
  failed.message +=
      address.kind == Address::Kind::unixSocket
          ? "; another process serves it: choose another path"
          : "; 'ss -ltnp' shows which process listens there: choose another port, or 0 for any free one";
  return failed;
}

Result<AddrInfo> resolve(const Address& address, bool passive) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = passive ? AI_PASSIVE : 0;
  addrinfo* found = nullptr;
  std::string port = std::to_string(address.port);
  const char* host = address.host == "*" ? nullptr : address.host.c_str();
  int error = getaddrinfo(host, port.c_str(), &hints, &found);
  if (error != 0) {
    return Error{ErrorCode::unavailable,
                 address.toString() + ": cannot resolve the host: " + gai_strerror(error)};
  }
  return AddrInfo(found, &freeaddrinfo);
}

sockaddr_un unixAddress(const Address& address) {
  sockaddr_un out{};
  out.sun_family = AF_UNIX;
  std::strncpy(out.sun_path, address.path.c_str(),
               sizeof out.sun_path - 1);  // length checked by parseAddress()
  return out;
}

void setUp(int fd, int family) {
  if (family == AF_UNIX) {
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kUnixBufferBytes, sizeof kUnixBufferBytes);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &kUnixBufferBytes, sizeof kUnixBufferBytes);
  } else {
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  }
}

uint16_t boundPort(int fd) {
  sockaddr_storage name{};
  socklen_t length = sizeof name;
  getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length);
  return ntohs(name.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(name).sin6_port
                                          : reinterpret_cast<sockaddr_in&>(name).sin_port);
}

void setPort(addrinfo& info, uint16_t port) {
  if (info.ai_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(info.ai_addr)->sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in*>(info.ai_addr)->sin_port = htons(port);
  }
}

/// Opens a socket; empty with errno set on failure. `multipath`: MPTCP if the system supports it.
OwnFd openSocket(int family, bool multipath) {
  constexpr int kType = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
  if (multipath) {
    OwnFd fd(socket(family, kType, IPPROTO_MPTCP));
    if (fd.get() >= 0) return fd;
  }
  return OwnFd(socket(family, kType, 0));
}

/// One listening socket, or -1 with errno set.
int listenSocket(int family, const sockaddr* name, socklen_t length, bool multipath) {
  OwnFd fd = openSocket(family, multipath);
  if (fd.get() < 0) return -1;
  int on = 1;
  if (family != AF_UNIX) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  // Separate sockets per family, so that "*" and "localhost" work with and without IPv6.
  if (family == AF_INET6) setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  setUp(fd.get(), family);
  if (bind(fd.get(), name, length) != 0 || listen(fd.get(), kBacklog) != 0) return -1;
  return fd.release();
}

/// Binds every resolved address to one port; returns EADDRINUSE if the port is taken in some family.
int listenOnAll(addrinfo* found, uint16_t port, bool multipath, std::vector<OwnFd>& sockets) {
  int skipped = 0;
  for (addrinfo* info = found; info != nullptr; info = info->ai_next) {
    setPort(*info, port);
    int fd = listenSocket(info->ai_family, info->ai_addr, info->ai_addrlen, multipath);
    if (fd < 0 && (errno == EADDRNOTAVAIL || errno == EAFNOSUPPORT)) {
      skipped = errno;  // a family that this machine does not support
      continue;
    }
    if (fd < 0) return errno;
    sockets.emplace_back(fd);
    if (port == 0) port = boundPort(fd);
  }
  return sockets.empty() ? skipped : 0;
}

int connectOne(int family, const sockaddr* name, socklen_t length, bool multipath,
               std::chrono::milliseconds timeout, OwnFd& out) {
  OwnFd fd = openSocket(family, multipath);
  if (fd.get() < 0) return errno;
  setUp(fd.get(), family);
  if (connect(fd.get(), name, length) != 0) {
    if (errno != EINPROGRESS) return errno;  // EAGAIN: the backlog of a Unix socket is full
    pollfd wait{fd.get(), POLLOUT, 0};
    int ready = poll(&wait, 1, static_cast<int>(timeout.count()));
    if (ready <= 0) return ready == 0 ? ETIMEDOUT : errno;
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return error;
  }
  out = std::move(fd);
  return 0;
}

/// Whether the path is a socket left behind by a process that no longer exists.
bool isStaleSocket(const sockaddr_un& name) {
  struct stat info {};
  if (lstat(name.sun_path, &info) != 0 || !S_ISSOCK(info.st_mode)) return false;
  OwnFd probe;
  return connectOne(AF_UNIX, reinterpret_cast<const sockaddr*>(&name), sizeof name, false,
                    std::chrono::seconds(1), probe) == ECONNREFUSED;
}

/// The file at the path itself, without following links; empty if there is none.
std::optional<FileIdentity> fileAt(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return {};
  return FileIdentity{info.st_dev, info.st_ino};
}

/// What is at the path if it is not a socket; empty otherwise.
std::string nonSocketAt(const sockaddr_un& name) {
  struct stat info {};
  if (lstat(name.sun_path, &info) != 0 || S_ISSOCK(info.st_mode)) return "";
  return S_ISDIR(info.st_mode) ? "a folder" : S_ISLNK(info.st_mode) ? "a symbolic link" : "a file";
}

}  // namespace

OwnFd::~OwnFd() {
  if (fd_ >= 0) close(fd_);
}

ListenSockets::~ListenSockets() {
  if (!sockets_.empty() && file_ && fileAt(address_.path) == file_) unlink(address_.path.c_str());
}

Result<ListenSockets> listenOn(const Address& address) {
  ListenSockets out;
  out.address_ = address;
  if (address.kind == Address::Kind::unixSocket) {
    sockaddr_un name = unixAddress(address);
    auto* generic = reinterpret_cast<sockaddr*>(&name);
    int fd = listenSocket(AF_UNIX, generic, sizeof name, false);
    if (fd < 0 && errno == EADDRINUSE) {
      if (const std::string other = nonSocketAt(name); !other.empty()) {
        return Error{ErrorCode::io, address.toString() + ": cannot listen: there is " + other +
                                        " that is not a socket; remove it or choose another path"};
      }
      if (isStaleSocket(name)) {
        unlink(address.path.c_str());
        fd = listenSocket(AF_UNIX, generic, sizeof name, false);
      } else {
        errno = EADDRINUSE;
      }
    }
    if (fd < 0) return cannotListen(address, errno);
    out.sockets_.emplace_back(fd);
    out.file_ = fileAt(address.path);
    return out;
  }
  PSD_ASSIGN_OR_RETURN(AddrInfo found, resolve(address, true));
  int error = 0;
  for (int i = 0; i < (address.port == 0 ? kPortTries : 1); i++) {
    out.sockets_.clear();
    error = listenOnAll(found.get(), address.port, address.multipath, out.sockets_);
    if (error != EADDRINUSE) break;  // a port free in one family may be taken in the other
  }
  if (error != 0) {
    out.sockets_.clear();
    return cannotListen(address, error);
  }
  out.address_.port = boundPort(out.sockets_.front().get());
  return out;
}

Result<AcceptedSocket> acceptFrom(int listening) {
  sockaddr_storage name{};
  socklen_t length = sizeof name;
  int fd = accept4(listening, reinterpret_cast<sockaddr*>(&name), &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) {
    if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return AcceptedSocket{};
    return Error{ErrorCode::io, std::strerror(errno)};
  }
  AcceptedSocket accepted{OwnFd(fd), peerText(name, length), userOf(fd)};
  setUp(fd, name.ss_family);
  return accepted;
}

void enableKeepAlive(int fd, milliseconds silence) {
  constexpr int kProbes = 2;
  constexpr int64_t kSecondsMax = 32'767;  // the system's limit
  const auto quarter = std::chrono::ceil<std::chrono::seconds>(silence / 4).count();
  const int interval = static_cast<int>(std::clamp<int64_t>(quarter, 1, kSecondsMax));
  const int idle = static_cast<int>(std::clamp<int64_t>(2 * quarter, 1, kSecondsMax));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &kProbes, sizeof kProbes);
}

bool hasDisconnected(int fd) {
  pollfd look{fd, POLLRDHUP, 0};
  return poll(&look, 1, 0) > 0 && (look.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

uint64_t unreadBytes(int fd) {
  int bytes = 0;
  return ioctl(fd, FIONREAD, &bytes) == 0 && bytes > 0 ? static_cast<uint64_t>(bytes) : 0;
}

Result<OwnFd> connectTo(const Address& address, std::chrono::milliseconds timeout, bool* refused) {
  OwnFd fd;
  int error = 0;
  if (address.kind == Address::Kind::unixSocket) {
    sockaddr_un name = unixAddress(address);
    error = connectOne(AF_UNIX, reinterpret_cast<sockaddr*>(&name), sizeof name, false, timeout, fd);
  } else {
    PSD_ASSIGN_OR_RETURN(AddrInfo found, resolve(address, false));
    const auto deadline = Clock::now() + timeout;
    int left = 0;
    for (addrinfo* info = found.get(); info != nullptr; info = info->ai_next) left++;
    for (addrinfo* info = found.get(); info != nullptr; info = info->ai_next) {
      const auto share = std::chrono::duration_cast<milliseconds>(deadline - Clock::now()) / left--;
      error = connectOne(info->ai_family, info->ai_addr, info->ai_addrlen, address.multipath,
                         std::max(share, milliseconds(1)), fd);
      if (error == 0) break;
    }
  }
  if (refused) *refused = error == ECONNREFUSED || error == ENOENT;
  if (error == 0) return fd;
  ErrorCode code = error == ETIMEDOUT ? ErrorCode::deadlineExceeded : ErrorCode::unavailable;
  return socketError(code, address, "cannot connect", error);
}

}  // namespace psd
