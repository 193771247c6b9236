#include "common/os/env.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/os/write_whole.h"
#include "common/text/text.h"

namespace psd {
namespace {

/// Limit on a pipe or device, which is read completely when it is opened.
constexpr size_t kStreamBytesMax = 32u << 20;

/// Mode of a new file, before the umask.
constexpr mode_t kNewFileMode = S_IRUSR | S_IWUSR | S_IRGRP | S_IWGRP | S_IROTH | S_IWOTH;

Error systemError(const std::string& path, const char* what) {
  return {ErrorCode::io, quotedPath(path) + ": " + what + ": " + std::strerror(errno)};
}

/// Whether the error means that the path does not exist, as opposed to an unknown state.
bool isMissing(int error) { return error == ENOENT || error == ENOTDIR; }

/// Whether a path refers to an open file.
Result<bool> refersTo(const std::string& path, int fd) {
  struct stat named {
  }, opened{};
  if (::stat(path.c_str(), &named) != 0) {
    if (isMissing(errno)) return false;
    return systemError(path, "cannot stat");
  }
  if (::fstat(fd, &opened) != 0) return systemError(path, "cannot stat the open file");
  return named.st_ino == opened.st_ino && named.st_dev == opened.st_dev;
}

/// Copies permissions to a file that only its owner can access, without the group's if this process cannot
/// set the group: another group would get them.
void copyPermissions(int fd, const struct stat& from) {
  mode_t mode = from.st_mode & (S_IRWXU | S_IRWXG | S_IRWXO);
  const bool taken =
      ::fchown(fd, from.st_uid, from.st_gid) == 0 || ::fchown(fd, static_cast<uid_t>(-1), from.st_gid) == 0;
  if (!taken) mode &= ~static_cast<mode_t>(S_IRWXG) | (mode & S_IRWXO) << 3;
  static_cast<void>(::fchmod(fd, mode));  // some file systems have no permissions
}

class PosixWritableFile final : public WritableFile {
 public:
  PosixWritableFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  ~PosixWritableFile() override {
    if (fd_ >= 0) ::close(fd_);
  }
  Status append(std::span<const std::byte> bytes) override {
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return writeWhole(fd_, text) ? Status() : Status(systemError(path_, "cannot write"));
  }
  Status sync() override {
    return ::fdatasync(fd_) == 0 ? Status() : Status(systemError(path_, "cannot sync"));
  }
  Status close() override {
    int fd = std::exchange(fd_, -1);
    return ::close(fd) == 0 ? Status() : Status(systemError(path_, "cannot close"));
  }
  Status inPlace() const override {
    PSD_ASSIGN_OR_RETURN(const bool there, refersTo(path_, fd_));
    if (there) return {};
    return {ErrorCode::io, quotedPath(path_) + ": no longer exists"};
  }

 private:
  std::string path_;
  int fd_;
};

class PosixReadableFile final : public ReadableFile {
 public:
  PosixReadableFile(std::string path, int fd, uint64_t size) : path_(std::move(path)), fd_(fd), size_(size) {}
  ~PosixReadableFile() override { ::close(fd_); }
  uint64_t size() const override { return size_; }
  Status read(uint64_t offset, std::span<std::byte> into) const override {
    while (!into.empty()) {
      ssize_t got = ::pread(fd_, into.data(), into.size(), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return systemError(path_, "cannot read");
      if (got == 0)
        return {ErrorCode::io,
                quotedPath(path_) + ": ends before byte " + std::to_string(offset + into.size())};
      offset += static_cast<uint64_t>(got);
      into = into.subspan(static_cast<size_t>(got));
    }
    return {};
  }

 private:
  std::string path_;
  int fd_;
  uint64_t size_;
};

/// The contents of a pipe, which has no size and can be read only once.
class StreamedFile final : public ReadableFile {
 public:
  StreamedFile(std::string path, std::vector<std::byte> bytes)
      : path_(std::move(path)), bytes_(std::move(bytes)) {}
  uint64_t size() const override { return bytes_.size(); }
  Status read(uint64_t offset, std::span<std::byte> into) const override {
    if (offset > bytes_.size() || into.size() > bytes_.size() - offset) {
      return {ErrorCode::io,
              quotedPath(path_) + ": ends before byte " + std::to_string(offset + into.size())};
    }
    std::copy_n(bytes_.begin() + static_cast<ptrdiff_t>(offset), into.size(), into.begin());
    return {};
  }

 private:
  const std::string path_;
  const std::vector<std::byte> bytes_;
};

Result<std::unique_ptr<ReadableFile>> readStream(const std::string& path, int fd) {
  constexpr size_t kChunkBytes = 64u << 10;
  std::vector<std::byte> bytes;
  for (;;) {
    const size_t before = bytes.size();
    bytes.resize(before + kChunkBytes);
    const ssize_t got = ::read(fd, bytes.data() + before, kChunkBytes);
    if (got < 0 && errno != EINTR) return systemError(path, "cannot read");
    bytes.resize(before + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) return std::unique_ptr<ReadableFile>(new StreamedFile(path, std::move(bytes)));
    if (bytes.size() <= kStreamBytesMax) continue;
    return Error{ErrorCode::io, quotedPath(path) + ": is not a regular file, and yields more than " +
                                    std::to_string(kStreamBytesMax) + " bytes"};
  }
}

/// flock() ends with the process, however that ends, so a leftover file excludes no process. The folder is
/// locked too, so that removing the file does not release the lock; not every file system supports that.
class PosixFileLock final : public FileLock {
 public:
  PosixFileLock(std::string path, int fd, int folder) : path_(std::move(path)), fd_(fd), folder_(folder) {}
  ~PosixFileLock() override {
    ::close(fd_);
    if (folder_ >= 0) ::close(folder_);
  }
  bool inPlace() const override {
    const auto there = refersTo(path_, fd_);
    return !there.ok() || *there;
  }

 private:
  const std::string path_;
  const int fd_, folder_;
};

class PosixEnv final : public Env {
 public:
  Result<std::unique_ptr<WritableFile>> create(const std::string& path) override {
    int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kNewFileMode);
    if (fd < 0) return systemError(path, "cannot create");
    return std::unique_ptr<WritableFile>(new PosixWritableFile(path, fd));
  }
  Result<std::unique_ptr<WritableFile>> createInPlaceOf(const std::string& path,
                                                        const std::string& replaced) override {
    struct stat info {};
    if (::lstat(replaced.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return create(path);
    ::unlink(path.c_str());  // left by a process that died during a write
    int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (fd < 0) return systemError(path, "cannot create");
    copyPermissions(fd, info);
    return std::unique_ptr<WritableFile>(new PosixWritableFile(path, fd));
  }
  Result<std::unique_ptr<ReadableFile>> open(const std::string& path) override {
    int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return systemError(path, "cannot open");
    struct stat info {};
    if (::fstat(fd, &info) != 0 || S_ISDIR(info.st_mode)) {
      if (S_ISDIR(info.st_mode)) errno = EISDIR;
      Error error = systemError(path, "cannot open");
      ::close(fd);
      return error;
    }
    if (!S_ISREG(info.st_mode)) {
      auto streamed = readStream(path, fd);
      ::close(fd);
      return streamed;
    }
    return std::unique_ptr<ReadableFile>(
        new PosixReadableFile(path, fd, static_cast<uint64_t>(info.st_size)));
  }
  Status rename(const std::string& from, const std::string& to) override {
    return ::rename(from.c_str(), to.c_str()) == 0 ? Status() : Status(systemError(to, "cannot rename to"));
  }
  Status remove(const std::string& path) override {
    return ::unlink(path.c_str()) == 0 ? Status() : Status(systemError(path, "cannot remove"));
  }
  Status truncate(const std::string& path, uint64_t bytes) override {
    int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0) return systemError(path, "cannot open");
    bool cut = ::ftruncate(fd, static_cast<off_t>(bytes)) == 0 && ::fsync(fd) == 0;
    Status status = cut ? Status() : Status(systemError(path, "cannot truncate"));
    ::close(fd);
    return status;
  }
  Status createFolder(const std::string& folder) override {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (!error) return {};
    return {ErrorCode::io, quotedPath(folder) + ": cannot create the folder: " + error.message()};
  }
  Status removeFolder(const std::string& folder) override {
    return ::rmdir(folder.c_str()) == 0 ? Status() : Status(systemError(folder, "cannot remove"));
  }
  Result<std::vector<std::string>> list(const std::string& folder) override {
    std::error_code error;
    std::filesystem::directory_iterator entries(folder, error);
    std::vector<std::string> names;
    for (const std::filesystem::directory_iterator end; !error && entries != end; entries.increment(error)) {
      names.push_back(entries->path().filename().string());
    }
    if (error) return Error{ErrorCode::io, quotedPath(folder) + ": cannot list: " + error.message()};
    std::sort(names.begin(), names.end());
    return names;
  }
  Result<bool> exists(const std::string& path) override {
    if (::access(path.c_str(), F_OK) == 0) return true;
    if (isMissing(errno)) return false;
    return systemError(path, "cannot stat");
  }
  Result<std::unique_ptr<FileLock>> lock(const std::string& path) override {
    int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kNewFileMode);
    if (fd < 0) return systemError(path, "cannot open");
    bool locked = ::flock(fd, LOCK_EX | LOCK_NB) == 0;
    bool taken = !locked && errno == EWOULDBLOCK;
    Error error = systemError(path, "cannot lock");
    const int folder = locked ? ::open(folderOf(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (folder >= 0 && ::flock(folder, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      locked = false;
      taken = true;
    }
    if (locked) return std::unique_ptr<FileLock>(new PosixFileLock(path, fd, folder));
    if (folder >= 0) ::close(folder);
    ::close(fd);
    if (taken) return Error{ErrorCode::unavailable, quotedPath(path) + ": another process has locked it"};
    return error;
  }
  Status syncFolder(const std::string& folder) override {
    int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return systemError(folder, "cannot open");
    int result = ::fsync(fd);
    Status status = result == 0 ? Status() : Status(systemError(folder, "cannot sync"));
    ::close(fd);
    return status;
  }
};

/// The temporary name beside `path` for its new content.
std::string temporaryFor(const std::string& path) { return path + ".tmp." + std::to_string(::getpid()); }

/// Rewrites an error about the temporary file, whose name callers do not know, to one about `path`.
Error namedAfter(const std::string& path, Error error) {
  const std::string temporary = quotedPath(temporaryFor(path));
  if (const size_t at = error.message.find(temporary); at != std::string::npos) {
    error.message.replace(at, temporary.size(), quotedPath(path));
  }
  return error;
}

/// Rejects devices, pipes and links, which a rename would replace by a file.
Status checkOrdinary(const std::string& path) {
  if (path == "-")
    return {ErrorCode::io, "'-': only files are written, not standard output; './-' names a file"};
  std::error_code ignored;
  const auto kind = std::filesystem::symlink_status(path, ignored).type();
  using Kind = std::filesystem::file_type;
  if (kind == Kind::symlink)
    return {ErrorCode::io, quotedPath(path) + ": is a symbolic link; name the file itself"};
  const bool ordinary = kind == Kind::none || kind == Kind::not_found || kind == Kind::regular ||
                        kind == Kind::directory || kind == Kind::unknown;
  if (ordinary) return {};
  return {ErrorCode::io, quotedPath(path) + ": is a device or a pipe, not a file to write"};
}

}  // namespace

std::unique_ptr<Env> makePosixEnv() { return std::make_unique<PosixEnv>(); }

std::string folderOf(const std::string& path) {
  std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

Status writeFileAtomically(Env& env, const std::string& path,
                           const std::function<Status(WritableFile&)>& write) {
  PSD_RETURN_IF_ERROR(checkOrdinary(path));
  const std::string temporary = temporaryFor(path);
  auto attempt = [&]() -> Status {
    PSD_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, env.createInPlaceOf(temporary, path));
    PSD_RETURN_IF_ERROR(write(*file));
    PSD_RETURN_IF_ERROR(file->sync());
    PSD_RETURN_IF_ERROR(file->close());
    PSD_RETURN_IF_ERROR(env.rename(temporary, path));
    return env.syncFolder(folderOf(path));
  };
  const Status status = attempt();
  if (status.ok()) return status;
  static_cast<void>(env.remove(temporary));
  return namedAfter(path, status.error());
}

Status checkWritable(Env& env, const std::string& path) {
  const std::string folder = folderOf(path), temporary = temporaryFor(path);
  PSD_ASSIGN_OR_RETURN(const bool hasFolder, env.exists(folder));
  if (!hasFolder) {
    return {ErrorCode::io, quotedPath(path) + ": there is no folder " + quotedPath(folder)};
  }
  if (env.list(path).ok()) return {ErrorCode::io, quotedPath(path) + ": is a folder, not a file to write"};
  PSD_RETURN_IF_ERROR(checkOrdinary(path));
  const auto file = env.create(temporary);
  if (!file.ok()) return namedAfter(path, file.error());
  PSD_RETURN_IF_ERROR((*file)->close());
  return env.remove(temporary);
}

}  // namespace psd
