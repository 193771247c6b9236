#include "common/os/notify_socket.h"

#include <cerrno>
#include <cstddef>
#include <cstring>

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include "common/text/text.h"

namespace psd {
namespace {

constexpr time_t kSendSecondsMax = 1;

Error unusable(std::string_view name, const std::string& why) {
  return {ErrorCode::io, "'" + printable(name) + "' " + why};
}

}  // namespace

Result<NotifySocket> NotifySocket::open(std::string_view name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.size() < 2 || (name[0] != '/' && name[0] != '@')) {
    return unusable(name, "is neither a path nor '@' with a name");
  }
  if (name.size() >= sizeof address.sun_path) {
    return unusable(name, "is longer than " + std::to_string(sizeof address.sun_path - 1) +
                              " bytes, the limit of a Unix socket's name");
  }
  std::memcpy(address.sun_path, name.data(), name.size());
  if (name[0] == '@') address.sun_path[0] = 0;
  OwnFd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const timeval most{.tv_sec = kSendSecondsMax, .tv_usec = 0};
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  if (fd.get() < 0 || setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most) != 0 ||
      connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    return unusable(name, std::string("cannot be connected to: ") + std::strerror(errno));
  }
  return NotifySocket(std::move(fd));
}

Status NotifySocket::tell(std::string_view lines) const {
  while (send(fd_.get(), lines.data(), lines.size(), MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    return {ErrorCode::io, std::strerror(errno)};
  }
  return {};
}

}  // namespace psd
