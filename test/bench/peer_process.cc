#include "test/bench/peer_process.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <system_error>
#include <utility>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace psd::bench {
namespace {

int checked(int result, const char* what) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), what);
  return result;
}

void setBuffers(int fd, int bytes) {
  if (bytes == 0) return;
  for (const int option : {SO_SNDBUF, SO_RCVBUF}) {
    checked(setsockopt(fd, SOL_SOCKET, option, &bytes, sizeof bytes), "setsockopt");
  }
}

std::array<int, 2> connectedByTcp(int bufferBytes) {
  const int listening = checked(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
  setBuffers(listening, bufferBytes);  // before listen(): an accepted socket inherits them
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  checked(bind(listening, generic, size), "bind");
  checked(listen(listening, 1), "listen");
  checked(getsockname(listening, generic, &size), "getsockname");
  const int near = checked(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
  setBuffers(near, bufferBytes);
  checked(connect(near, generic, size), "connect");
  const int far = checked(accept4(listening, nullptr, nullptr, SOCK_CLOEXEC), "accept");
  close(listening);
  const int on = 1;
  for (const int fd : {near, far}) {
    checked(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), "setsockopt");
  }
  return {near, far};
}

std::array<int, 2> connected(StreamKind kind, int bufferBytes) {
  if (kind == StreamKind::tcp) return connectedByTcp(bufferBytes);
  std::array<int, 2> fds{};
  checked(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()), "socketpair");
  for (const int fd : fds) setBuffers(fd, bufferBytes);
  return fds;
}

[[noreturn]] void runChild(int fd, const std::function<void(int)>& serve) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    serve(fd);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "psd-bench-references: serving: %s\n", error.what());
    _exit(1);
  }
  _exit(0);
}

}  // namespace

PeerProcess::PeerProcess(StreamKind kind, int bufferBytes, const std::function<void(int)>& serve) {
  const auto [near, far] = connected(kind, bufferBytes);
  pid_ = checked(fork(), "fork");
  if (pid_ == 0) {
    close(near);
    runChild(far, serve);
  }
  close(far);
  fd_ = near;
}

PeerProcess::~PeerProcess() {
  if (fd_ >= 0) close(fd_);
  waitpid(pid_, nullptr, 0);
}

int PeerProcess::release() { return std::exchange(fd_, -1); }

void sendAll(int fd, std::span<const char> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    checked(static_cast<int>(sent < 0 ? -1 : 0), "send");
    bytes = bytes.subspan(static_cast<size_t>(sent));
  }
}

bool receiveAll(int fd, std::span<char> bytes) {
  while (!bytes.empty()) {
    const ssize_t received = recv(fd, bytes.data(), bytes.size(), 0);
    if (received < 0 && errno == EINTR) continue;
    checked(static_cast<int>(received < 0 ? -1 : 0), "recv");
    if (received == 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(received));
  }
  return true;
}

}  // namespace psd::bench
