#include "common/os/http_answer.h"

#include <algorithm>

#include <poll.h>
#include <sys/socket.h>

#include "common/os/socket.h"

namespace psd {

std::string httpAnswer(const Address& address, const std::string& path, std::chrono::milliseconds timeout) {
  const auto fd = connectTo(address, timeout);
  const std::string request = "GET " + path + " HTTP/1.0\r\n\r\n";
  if (!fd.ok() || send(fd->get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) return "";
  pollfd look{fd->get(), POLLIN, 0};
  if (poll(&look, 1, static_cast<int>(timeout.count())) <= 0) return "";
  std::string answer(4096, '\0');
  answer.resize(static_cast<size_t>(std::max<ssize_t>(recv(fd->get(), answer.data(), answer.size(), 0), 0)));
  return answer.starts_with("HTTP/") ? answer : "";
}

}  // namespace psd
