#include "common/os/private_file.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/os/env.h"
#include "common/os/socket.h"
#include "common/os/write_whole.h"

namespace psd {
namespace {

namespace fs = std::filesystem;

Error fileError(const std::string& path, std::string_view what) {
  return {ErrorCode::io, fmt::format("{}: {}: {}", path, what, std::strerror(errno))};
}

/// Whether the file is one of the service's credentials. systemd may grant them to a service's user by an
/// ACL, whose mask is what the mode shows as the group's.
bool isCredential(const std::string& path) {
  const char* const folder = std::getenv("CREDENTIALS_DIRECTORY");
  if (folder == nullptr || *folder != '/') return false;
  std::error_code missing, error;
  const fs::path parent = fs::canonical(path, missing).parent_path();
  return parent == fs::canonical(folder, error) && !missing && !error;
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

/// Reads the open file to its end.
Result<std::string> readOpen(int fd, const std::string& path, uint64_t bytesMax, std::string_view what,
                             bool orPipe) {
  PSD_RETURN_IF_ERROR(checkOnlyOwners(fd, path, orPipe));
  std::string text;
  char piece[4096];
  for (;;) {
    const ssize_t got = read(fd, piece, sizeof piece);
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

/// Opens the file at the path, and waits while another holds its lock.
Result<OwnFd> openLocked(const std::string& path, IfMissing ifMissing) {
  const int create = ifMissing == IfMissing::create ? O_CREAT : 0;
  for (;;) {
    OwnFd file(open(path.c_str(), O_RDWR | create | O_CLOEXEC | O_NONBLOCK, S_IRUSR | S_IWUSR));
    if (file.get() < 0) return fileError(path, "cannot be opened for writing");
    struct stat locked {
    }, present{};
    if (flock(file.get(), LOCK_EX) != 0 || fstat(file.get(), &locked) != 0) {
      if (errno == EINTR) continue;
      return fileError(path, "cannot be locked");
    }
    // While this call waited, the holder of the lock may have replaced the file.
    if (stat(path.c_str(), &present) == 0 && present.st_dev == locked.st_dev &&
        present.st_ino == locked.st_ino)
      return file;
  }
}

/// Replaces the file by one with this text, the same owner and mode. False: errno says why.
bool replaceFile(const std::string& path, int old, std::string_view text) {
  struct stat info {};
  if (fstat(old, &info) != 0) return false;
  std::string beside = path + ".XXXXXX";
  const OwnFd file(mkostemp(beside.data(), O_CLOEXEC));
  if (file.get() < 0) return false;
  const bool owned = info.st_uid == geteuid() || fchown(file.get(), info.st_uid, info.st_gid) == 0;
  if (!owned || fchmod(file.get(), info.st_mode & 07777) != 0 || !writeWhole(file.get(), text) ||
      fsync(file.get()) != 0 || rename(beside.c_str(), path.c_str()) != 0) {
    const int why = errno;
    unlink(beside.c_str());
    errno = why;
    return false;
  }
  const OwnFd folder(open(folderOf(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return folder.get() >= 0 && fsync(folder.get()) == 0;
}

}  // namespace

Result<std::string> readPrivateText(const std::string& path, uint64_t bytesMax, std::string_view what,
                                    bool orPipe) {
  // O_NONBLOCK: do not wait for the writer of a pipe.
  const OwnFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | (orPipe ? 0 : O_NONBLOCK)));
  if (file.get() < 0) return fileError(path, "cannot be read");
  return readOpen(file.get(), path, bytesMax, what, orPipe);
}

Status editPrivateText(const std::string& path, uint64_t bytesMax, std::string_view what, IfMissing ifMissing,
                       const std::function<Status(std::string& text)>& edit) {
  PSD_ASSIGN_OR_RETURN(const OwnFd file, openLocked(path, ifMissing));
  PSD_ASSIGN_OR_RETURN(const std::string before,
                       readOpen(file.get(), path, bytesMax, what, /*orPipe=*/false));
  std::string after = before;
  PSD_RETURN_IF_ERROR(edit(after));
  if (after == before) return {};
  std::error_code error;
  const std::string target = fs::canonical(path, error);  // a link to it stays
  if (error) return {ErrorCode::io, path + ": cannot be inspected: " + error.message()};
  return replaceFile(target, file.get(), after) ? Status() : fileError(path, "cannot be replaced");
}

}  // namespace psd
