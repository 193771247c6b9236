#include "common/log/log_target.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "common/text/text.h"

namespace psd {
namespace {

Result<OwnFd> openLogFile(const std::string& path) {
  const auto folder = std::filesystem::path(path).parent_path();
  std::error_code unknown;  // if the lookup fails, open() reports the reason
  if (!folder.empty() && !std::filesystem::exists(folder, unknown) && !unknown) {
    return Error{ErrorCode::invalidArgument,
                 "log.file: " + quotedPath(path) + ": there is no folder " + quotedPath(folder.string())};
  }
  OwnFd file(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644));
  if (file.get() < 0) {
    return Error{ErrorCode::invalidArgument, "log.file: " + quotedPath(path) + ": " + std::strerror(errno)};
  }
  return file;
}

}  // namespace

Result<LogTarget> LogTarget::open(const std::string& path) {
  if (path.empty()) return LogTarget("", OwnFd());
  PSD_ASSIGN_OR_RETURN(OwnFd file, openLogFile(path));
  return LogTarget(path, std::move(file));
}

Status LogTarget::reopen() {
  if (path_.empty()) return {};
  PSD_ASSIGN_OR_RETURN(file_, openLogFile(path_));
  torn_ = false;
  return {};
}

Status LogTarget::write(std::string_view text) {
  const int fd = file_.get() < 0 ? STDERR_FILENO : file_.get();
  std::string mended;
  if (torn_) text = mended = "\n" + std::string(text);
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t written = ::write(fd, text.data() + done, text.size() - done);
    if (written >= 0) {
      done += static_cast<size_t>(written);
    } else if (errno == EAGAIN) {  // standard error may be shared with a program that made it non-blocking
      pollfd room{fd, POLLOUT, 0};
      poll(&room, 1, -1);
    } else if (errno != EINTR) {
      const int reason = errno;
      if (done > 0) torn_ = text[done - 1] != '\n';
      return {ErrorCode::io, std::strerror(reason)};
    }
  }
  torn_ = false;
  return {};
}

}  // namespace psd
