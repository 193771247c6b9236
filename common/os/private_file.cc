#include "common/os/private_file.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/os/socket.h"

namespace psd {
namespace {

Error fileError(const std::string& path, std::string_view what) {
  return {ErrorCode::io, fmt::format("{}: {}: {}", path, what, std::strerror(errno))};
}

/// Whether the file is one of the service's credentials. systemd may grant them to a service's user by an
/// ACL, whose mask is what the mode shows as the group's.
bool isCredential(const std::string& path) {
  const char* const folder = std::getenv("CREDENTIALS_DIRECTORY");
  return folder != nullptr && path.starts_with(std::string(folder) + "/");
}

/// Checks the open file, not what is at the path by now.
Status checkOnlyOwners(int fd, const std::string& path, bool orPipe) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return fileError(path, "cannot be inspected");
  if (S_ISDIR(info.st_mode)) return {ErrorCode::io, path + ": is a folder, not a file"};
  if (!S_ISREG(info.st_mode)) {
    return orPipe ? Status() : Status(ErrorCode::io, path + ": is a device or a pipe, not a file");
  }
  if (info.st_uid != geteuid() && info.st_uid != 0) {
    return {ErrorCode::io,
            fmt::format("{}: belongs to another user ({}), who could change it", path, info.st_uid)};
  }
  const mode_t others = isCredential(path) ? S_IWGRP | S_IRWXO : S_IRWXG | S_IRWXO;
  if ((info.st_mode & others) == 0) return {};
  return {ErrorCode::io,
          fmt::format("{}: accessible to group or others (mode {:04o}); it holds secrets: chmod 600 {}", path,
                      info.st_mode & 07777, path)};
}

}  // namespace

Result<std::string> readPrivateText(const std::string& path, uint64_t bytesMax, std::string_view what,
                                    bool orPipe) {
  // O_NONBLOCK: do not wait for the writer of a pipe.
  const OwnFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | (orPipe ? 0 : O_NONBLOCK)));
  if (file.get() < 0) return fileError(path, "cannot be read");
  PSD_RETURN_IF_ERROR(checkOnlyOwners(file.get(), path, orPipe));
  std::string text;
  char piece[4096];
  for (;;) {
    const ssize_t got = read(file.get(), piece, sizeof piece);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fileError(path, "cannot be read");
    if (got == 0) return text;
    text.append(piece, static_cast<size_t>(got));
    if (text.size() > bytesMax) {
      return Error{ErrorCode::io,
                   fmt::format("{}: has more than {} bytes, the limit of {}", path, bytesMax, what)};
    }
  }
}

Status replacePrivateText(const std::string& path, std::string_view text) {
  std::error_code error;
  const std::string target = std::filesystem::canonical(path, error);  // a link to it stays
  struct stat info {};
  if (error || stat(target.c_str(), &info) != 0) return fileError(path, "cannot be inspected");
  std::string beside = target + ".XXXXXX";
  const OwnFd file(mkostemp(beside.data(), O_CLOEXEC));
  if (file.get() < 0) return fileError(beside, "cannot be written");
  const bool owned = info.st_uid == geteuid() || fchown(file.get(), info.st_uid, info.st_gid) == 0;
  if (owned && fchmod(file.get(), info.st_mode & 07777) == 0 &&
      write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      fsync(file.get()) == 0 && rename(beside.c_str(), target.c_str()) == 0) {
    return {};
  }
  const Status failed = fileError(path, "cannot be replaced");
  unlink(beside.c_str());
  return failed;
}

Status appendPrivateLine(const std::string& path, std::string_view line) {
  const OwnFd file(
      open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, S_IRUSR | S_IWUSR));
  if (file.get() < 0) return fileError(path, "cannot be written");
  PSD_RETURN_IF_ERROR(checkOnlyOwners(file.get(), path, false));
  // Do not append to an unterminated last line.
  char last = '\n';
  const off_t size = lseek(file.get(), 0, SEEK_END);
  if (size > 0 && pread(file.get(), &last, 1, size - 1) != 1) return fileError(path, "cannot be read");
  const std::string text = (last == '\n' ? "" : "\n") + std::string(line) + "\n";
  if (write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      fsync(file.get()) != 0) {
    return fileError(path, "cannot be written");
  }
  return {};
}

}  // namespace psd
